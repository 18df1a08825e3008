"""EC2's prices by region."""

from __future__ import annotations

import pytest

from podwright.diagram import prices
from podwright.planning.on_demand import BASE_REGION, on_demand, rows, source_of
from podwright.settings.regions import HYPERPOD_REGIONS
from podwright_constructs.catalog import InstanceType, cluster_instance_types


def test_every_instance_type_of_a_cluster_has_a_row():
    """Of those with network bandwidth and prices; others are not planned with."""
    assert {row["instance_type"] for row in rows("instances.csv")} >= set(cluster_instance_types())


def test_every_row_has_a_known_type_and_region():
    """A price is of a type in the catalog and of a region where HyperPod is, once each, and near that of us-east-1."""
    table = rows("regional_prices.csv")
    found = [(row["instance_type"], row["region"], float(row["ec2_usd_per_hour"])) for row in table]
    assert len({(name, region) for name, region, _ in found}) == len(found)
    for name, region, price in found:
        base = on_demand(name, BASE_REGION)
        assert InstanceType.of(name).name == name
        assert region in HYPERPOD_REGIONS
        assert region != BASE_REGION
        assert base is not None
        assert 1 <= round(price / base.usd_per_hour, 5) < 2


@pytest.mark.parametrize(
    ("instance_type", "region", "price"),
    [
        ("ml.p5.48xlarge", "us-east-1", 55.04),
        ("ml.p5.48xlarge", "ap-northeast-1", 68.8),
        ("ml.p5.4xlarge", "ap-northeast-1", 8.6),  # another size of the family than the table's
        ("ml.g5.48xlarge", "ap-northeast-2", 20.02809),
        ("ml.g6e.16xlarge", "eu-north-1", 8.03728),
        ("ml.m5.large", "eu-west-1", 0.107),
    ],
)
def test_the_price_of_a_region(instance_type: str, region: str, price: float):
    """A type has the region's own price, also in a size that the table does not list."""
    found = on_demand(instance_type, region)
    assert found is not None
    assert found.region == region
    assert found.usd_per_hour == pytest.approx(price, rel=1e-5)


def test_a_region_without_known_prices():
    """A region or type that the table lacks has the price of us-east-1, and the label says so."""
    assert on_demand("ml.p5.48xlarge", "sa-east-1") == (55.04, "us-east-1")
    assert on_demand("ml.c5.xlarge", "eu-west-1") == (0.17, "us-east-1")
    assert on_demand("ml.trn2.48xlarge", "us-east-2") is None
    assert source_of("eu-west-1", ["ml.p4d.24xlarge", "ml.m5.xlarge"]) == "eu-west-1"
    assert source_of("eu-west-1", ["ml.p4d.24xlarge", "ml.c5.xlarge"]) == "eu-west-1; ml.c5.xlarge as in us-east-1"
    assert source_of("sa-east-1", ["ml.p5.48xlarge"]) == "us-east-1; sa-east-1's are not known"
    assert prices.label("eu-west-1", []) == "EC2 on-demand based, us-east-1"
    assert prices.label("us-east-1", ["ml.c5.xlarge"]) == "EC2 on-demand based, us-east-1"
    assert prices.label("eu-west-1", ["ml.m5.large"]) == "EC2 on-demand based, eu-west-1"


def test_openzfs_has_a_price_without_a_standby():
    """Capacity, throughput and the IOPS above three per GiB cost by the month; types without a source cost unknown."""
    arguments = {"deployment_type": "SINGLE_AZ_1", "storage_capacity": 300, "throughput_capacity": 1024}
    price = prices.of("aws_fsx_openzfs_file_system", arguments)
    assert price is not None
    assert price * 730 == pytest.approx(27.00 + 266.24)
    more = prices.of("aws_fsx_openzfs_file_system", {**arguments, "iops": 1000})
    assert more is not None
    assert (more - price) * 730 == pytest.approx(0.60)
    assert prices.of("aws_fsx_openzfs_file_system", {**arguments, "deployment_type": "SINGLE_AZ_HA_2"}) is None
