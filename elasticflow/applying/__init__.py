"""What becomes of a run's model afterwards: it predicts, or is evaluated, over data that it is given.

The work is cut into parts, whose borders follow from the data alone. Processes (``working``) compute them,
one after the other, and whoever lives does what others have left (``crew``, by the rules in ``progress``).
What comes of a part does not depend on who computes it.
"""
