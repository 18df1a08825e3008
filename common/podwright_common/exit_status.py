"""Exit statuses of podwright's commands. Those from 65 are of sysexits.h, those from 129 a shell's for a signal."""

OK = 0
FAILED = 1  # The work failed, or a check found a problem.
WRONG_INPUT = 2  # The user corrects an argument or a file; argparse exits with the same status.
OUT_OF_REACH = 3  # AWS or a node did not answer: what the command should find out is unknown.
DIVERGED = 65  # A run's weights cannot be trained further; DATAERR.
INTERRUPTED = 130  # Ctrl-C, SIGINT.
CLOSED_PIPE = 141  # Nobody reads the output to its end, SIGPIPE.
