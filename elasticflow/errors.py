"""Every error ElasticFlow raises on purpose.

    ElasticFlowError
    ├── ConfigError        a setting, an option or a file of settings is wrong
    ├── ProgramError       the user's program is wrong: no model(), a cost that is no scalar, ...
    │   └── LoopError         its loop() does not keep to what makes it the same on every worker
    ├── DataError          a source of records is empty, ragged, changed, or does not fit forward()
    │   └── UnreadableError   the medium does not answer, or a file is no longer what it was
    ├── CheckpointError    a checkpoint is missing, damaged, or of another model
    ├── RunError           a run is in use, is not there, does not answer, or ended short of its end
    │   ├── NoRunError        there is no such run
    │   │   └── ElsewhereError    there are its checkpoints, and its folder is not here
    │   └── UnknownError      how a run is cannot be told now: who would know does not answer
    ├── ProtocolError      a message is malformed, or its sender is not who it must be
    └── BrokenError        the promise itself: bits that were sent and bits that came differ

Each is also a ``ValueError`` or ``RuntimeError``. The text says what was wrong, what was found,
what is allowed and what to do; the command line prints it after ``Error:`` and exits with 1, with
``EXIT_UNKNOWN`` for an UnknownError: never is "cannot be asked" taken for "is not there".
"""

EXIT_UNKNOWN = 75
"""``EX_TEMPFAIL`` of sysexits.h: try again later."""


class ElasticFlowError(Exception):
    """Root of all errors that ElasticFlow raises on purpose."""


class ConfigError(ElasticFlowError, ValueError):
    """A setting is wrong."""


class ProgramError(ElasticFlowError, ValueError):
    """The user's program is wrong."""


class LoopError(ProgramError):
    """The program's loop breaks a rule, whoever computes which records."""


class DataError(ElasticFlowError, ValueError):
    """A source of records is wrong."""


class UnreadableError(DataError):
    """Records cannot be read, and none of them is to blame: another worker, or a later try, may do better."""


class CheckpointError(ElasticFlowError, RuntimeError):
    """A checkpoint is missing, damaged, or of another model."""


class RunError(ElasticFlowError, RuntimeError):
    """A run is in use, is not there, does not answer, or ended short of its end."""


class NoRunError(RunError):
    """There is no run of that name, or in that folder."""


class ElsewhereError(NoRunError):
    """Where a run's checkpoints are is known, and its folder is not here: another machine's, or gone."""


class UnknownError(RunError):
    """How a run is, or whether there is one, cannot be told now: who would know does not answer."""


class ProtocolError(ElasticFlowError, RuntimeError):
    """A message is malformed, or its sender is not who it must be."""


class BrokenError(ElasticFlowError, RuntimeError):
    """Two processes differ about the same bits: nobody knows which model the run would give."""
