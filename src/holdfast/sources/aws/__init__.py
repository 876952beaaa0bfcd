"""The AWS source: reads auto scaling groups, EC2, ECS, SQS, EFS, CloudWatch; changes nothing.

One file reads each service, ``reading`` joins the answers into rows, ``source`` decides when each
service is asked. boto3 is an extra (``holdfast[aws]``) and is imported at the first call.
"""

from holdfast.sources.aws.config import AwsConfig, RateConfig
from holdfast.sources.aws.source import AwsSource

__all__ = ["AwsConfig", "AwsSource", "RateConfig"]
