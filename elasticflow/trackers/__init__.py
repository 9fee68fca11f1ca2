"""Where people look at curves: TensorBoard, MLflow, Weights & Biases, a CSV file.

``CurveFollowing`` decides, of what a run tells, which points are committed; each is drawn once, by one thread
for each tracker, in a process that nobody waits for. What is drawn is kept in ``points.json``, from which a
tracker that begins anew, or again, draws all that it lacks. Libraries are imported by those threads alone.
"""
