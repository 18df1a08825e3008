"""A mail when the cluster fails, a node is unhealthy, something could not be provisioned, or no job runs."""

from __future__ import annotations

from typing import Any

from constructs import Construct

from podwright_bootstrap.contract import CLUSTER_DIMENSION, METRICS_NAMESPACE, RUNNING_JOBS_METRIC
from podwright_constructs import checks
from podwright_constructs.aws.cloudwatch_event_rule import CloudwatchEventRule
from podwright_constructs.aws.cloudwatch_event_target import CloudwatchEventTarget
from podwright_constructs.aws.cloudwatch_metric_alarm import CloudwatchMetricAlarm
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import (
    DataIamPolicyDocument,
    DataIamPolicyDocumentStatement,
    DataIamPolicyDocumentStatementCondition,
)
from podwright_constructs.aws.sns_topic import SnsTopic
from podwright_constructs.aws.sns_topic_policy import SnsTopicPolicy
from podwright_constructs.aws.sns_topic_subscription import SnsTopicSubscription
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.grants import Grantee
from podwright_constructs.kit import Fn
from podwright_constructs.metric import Metric
from podwright_constructs.problems import refuse

HOUR_S = 3600


class ClusterNotices(CheckedConstruct):
    """An SNS topic for HyperPod's events about one cluster, and a mail address that gets them.

    AWS asks the address once whether it wants them. HyperPod's own cluster events exist with continuous provisioning
    alone. The rules go by the cluster's name, so they hear of a creation that fails.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-cluster-events-reference.html

    With ``idle_hours``, an alarm goes off after so many hours in each of which the controller published that no Slurm
    job ran (``ClusterFacts.publishes_running_jobs``). Hours without the metric do not count: the cluster is
    gone, or has no compute nodes.
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html

    With ``warnings``, cluster events of level Warn are sent too, such as retries. A message may lack the reason of a
    failure; ``podwright status`` asks for it.

    ``topic_arn`` is a topic you have, instead of a new one: its policy lets events.amazonaws.com publish and, for the
    alarm, cloudwatch.amazonaws.com. With ``email`` too, the address gets all that is published there.

    ``name`` is the topic's and the beginning of the names of rules and alarm. A key must let events.amazonaws.com, and
    cloudwatch.amazonaws.com for the alarm, use it.

    Raises:
        InvalidArgumentsError: a name or address that SNS or EventBridge would refuse; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        cluster_name: str,
        email: str | None = None,
        topic_arn: str | None = None,
        idle_hours: int | None = None,
        warnings: bool = False,
        key_arn: str | None = None,
    ) -> None:
        refuse(
            self,
            checks.cluster_notices(name=name, email=email, topic_arn=topic_arn, idle_hours=idle_hours, key_arn=key_arn),
        )
        super().__init__(scope, id_)
        self._key_arn = None if topic_arn else key_arn
        self._topic_name = Fn.element(Fn.split(":", topic_arn), 5) if topic_arn else name
        self.topic = None if topic_arn else SnsTopic(self, "topic", name=name, kms_master_key_id=key_arn)
        self.topic_arn: str = self.topic.arn if self.topic else str(topic_arn)
        if email:
            SnsTopicSubscription(self, "email", topic_arn=self.topic_arn, protocol="email", endpoint=email)
        for word, pattern in _patterns(cluster_name, warnings=warnings).items():
            self._rule(f"{name}-{word}", word, pattern)
        alarm = None if idle_hours is None else self._idle(f"{name}-idle", cluster_name, idle_hours)
        if self.topic:
            self._policy(self.topic, alarm)

    def grant_publish(self, role: Grantee) -> None:
        """Let a role send messages of its own to the address."""
        role.add_statement({"sid": "PublishNotices", "actions": ["sns:Publish"], "resources": [self.topic_arn]})
        if self._key_arn:
            through_sns: DataIamPolicyDocumentStatementCondition = {
                "test": "StringLike",
                "variable": "kms:ViaService",
                "values": ["sns.*.amazonaws.com"],
            }
            actions = ["kms:Decrypt", "kms:GenerateDataKey"]
            role.add_statement(
                {
                    "sid": "UseKeyOfNotices",
                    "actions": actions,
                    "resources": [self._key_arn],
                    "condition": [through_sns],
                }
            )

    def metric_messages(self) -> Metric:
        """Return the number of messages that were delivered.

        https://docs.aws.amazon.com/sns/latest/dg/sns-monitoring-using-cloudwatch.html
        """
        name, dimensions = "NumberOfNotificationsDelivered", {"TopicName": self._topic_name}
        return Metric(namespace="AWS/SNS", name=name, dimensions=dimensions, statistic="Sum")

    def _policy(self, topic: SnsTopic, alarm: CloudwatchMetricAlarm | None) -> None:
        statements = _publishers(topic)
        if alarm:
            account = DataCallerIdentity(self, "caller").account_id
            statements.append(_of_alarm(topic, alarm, account))
        document = DataIamPolicyDocument(self, "access", statement=statements)
        SnsTopicPolicy(self, "policy", arn=topic.arn, policy=document.json)

    def _idle(self, name: str, cluster_name: str, hours: int) -> CloudwatchMetricAlarm:
        return CloudwatchMetricAlarm(
            self,
            "idle",
            alarm_name=name,
            alarm_description=f"No Slurm job ran on {cluster_name} for {hours} h, and its compute nodes cost money",
            namespace=METRICS_NAMESPACE,
            metric_name=RUNNING_JOBS_METRIC,
            dimensions={CLUSTER_DIMENSION: cluster_name},
            statistic="Maximum",
            period=HOUR_S,
            evaluation_periods=hours,
            comparison_operator="LessThanThreshold",
            threshold=1,
            treat_missing_data="notBreaching",
            alarm_actions=[self.topic_arn],
        )

    def _rule(self, name: str, word: str, pattern: dict[str, Any]) -> None:
        rule = CloudwatchEventRule(self, word, name=name, event_pattern=Fn.jsonencode(pattern))
        CloudwatchEventTarget(self, f"{word}_target", rule=rule.name, arn=self.topic_arn)


def _patterns(cluster_name: str, *, warnings: bool) -> dict[str, dict[str, Any]]:
    """By a short word, which events are worth a mail."""

    def of(detail_type: str, detail: dict[str, Any]) -> dict[str, Any]:
        return {
            "source": ["aws.sagemaker"],
            "detail-type": [f"SageMaker HyperPod Cluster {detail_type}"],
            "detail": detail,
        }

    levels = ["Warn", "Error"] if warnings else ["Error"]
    return {
        "state": of("State Change", {"ClusterName": [cluster_name], "ClusterStatus": ["Failed", "RollingBack"]}),
        "health": of("Node Health Event", {"ClusterName": [cluster_name]}),
        "event": of("Event", {"EventDetails": {"ClusterName": [cluster_name], "EventLevel": levels}}),
    }


def _publishers(topic: SnsTopic) -> list[DataIamPolicyDocumentStatement]:
    return [
        # EventBridge fills in nothing that a condition could compare: with one no event arrives, and nothing says so.
        # https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-resource-based.html#eb-sns-permissions
        _publisher("PublishEvents", "events.amazonaws.com", topic),
        {
            "sid": "RefuseAnythingButTls",
            "effect": "Deny",
            "actions": ["sns:Publish"],
            "resources": [topic.arn],
            "principals": [{"type": "*", "identifiers": ["*"]}],
            "condition": [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}],
        },
    ]


def _of_alarm(topic: SnsTopic, alarm: CloudwatchMetricAlarm, account: str) -> DataIamPolicyDocumentStatement:
    """Let CloudWatch publish for one alarm of this account."""
    return {
        **_publisher("PublishAlarm", "cloudwatch.amazonaws.com", topic),
        "condition": [
            {"test": "ArnEquals", "variable": "aws:SourceArn", "values": [alarm.arn]},
            {"test": "StringEquals", "variable": "aws:SourceAccount", "values": [account]},
        ],
    }


def _publisher(sid: str, service: str, topic: SnsTopic) -> DataIamPolicyDocumentStatement:
    """Let a service of AWS publish."""
    return {
        "sid": sid,
        "actions": ["sns:Publish"],
        "resources": [topic.arn],
        "principals": [{"type": "Service", "identifiers": [service]}],
    }
