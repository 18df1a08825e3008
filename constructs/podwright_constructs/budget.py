"""A mail before the month's bill is larger than it should be."""

from __future__ import annotations

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.budgets_budget import BudgetsBudget, BudgetsBudgetNotification
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.problems import refuse


class ClusterBudget(CheckedConstruct):
    """A monthly budget for everything that carries a tag: a mail at 80 % and 100 %, and when 100 % is to be expected.

    Billing knows a tag only after it was activated there as a cost allocation tag; until then nothing is counted.
    https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/activating-tags.html

    Raises:
        InvalidArgumentsError: no amount, or an impossible address; all problems are in it.
    """

    def __init__(
        self, scope: Construct, id_: str, *, name: str, monthly_usd: int, email: str, tag_key: str, tag_value: str
    ) -> None:
        refuse(self, checks.cluster_budget(name=name, monthly_usd=monthly_usd, email=email))
        super().__init__(scope, id_)
        alarms = [("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100)]
        notifications: list[BudgetsBudgetNotification] = [
            {
                "comparison_operator": "GREATER_THAN",
                "notification_type": kind,
                "threshold": percent,
                "threshold_type": "PERCENTAGE",
                "subscriber_email_addresses": [email],
            }
            for kind, percent in alarms
        ]
        self.budget = BudgetsBudget(
            self,
            "budget",
            name=name,
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=str(monthly_usd),
            limit_unit="USD",
            cost_filter=[{"name": "TagKeyValue", "values": [f"user:{tag_key}${tag_value}"]}],
            notification=notifications,
        )
