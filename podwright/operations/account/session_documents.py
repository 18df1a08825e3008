"""AWS's documents of Session Manager with which commands start sessions.

https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-schema.html
"""

SSH = "AWS-StartSSHSession"
FORWARD = "AWS-StartPortForwardingSession"
INTERACTIVE = "AWS-StartInteractiveCommand"
COMMAND = "AWS-StartNonInteractiveCommand"
