"""The section ``nodes`` of ``cluster.yaml``: features of nodes beyond Slurm and file systems, all off by default."""

from pydantic import Field

from podwright.settings.section import Section
from podwright_bootstrap import features as node_features


class S3Mount(Section, node_features.S3Mount):
    """A bucket as a folder on every node, by Mountpoint for Amazon S3, for all users."""

    key_arn: str | None = Field(None, description="KMS key of the bucket. Default: no permission for a key.")


class NodesSection(Section, node_features.NodeFeatures):
    """Settings of the nodes, beyond Slurm and file systems; lifecycle scripts apply them."""

    s3_mounts: tuple[S3Mount, ...] = ()

    def features(self) -> node_features.NodeFeatures:
        """Return the nodes' view: the same names, except `S3Mount.key_arn`, which only the role needs."""
        return node_features.NodeFeatures.from_dict(
            self.model_dump(mode="json", exclude_none=True, exclude={"s3_mounts": {"__all__": {"key_arn"}}})
        )
