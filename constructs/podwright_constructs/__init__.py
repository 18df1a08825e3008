"""CDK-for-Terraform constructs for SageMaker HyperPod Slurm clusters; import the module that owns the noun you need."""

import os

# The kits start Node when they are imported, and its JavaScript half prints a banner about Node's age otherwise.
for _warning in ("DEPRECATED", "END_OF_LIFE"):
    os.environ.setdefault(f"JSII_SILENCE_WARNING_{_warning}_NODE_VERSION", "18,20,22")
