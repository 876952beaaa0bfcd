"""AWS: auto scaling groups, EC2, ECS, SQS, EFS, CloudWatch and its logs, read and never changed.

One file for what each service says, ``reading`` for what it means together, ``source`` for when
each is asked. boto3 is an extra (``holdfast[aws]``) and is imported when the first call is made.
"""

from holdfast.sources.aws.config import AwsConfig, RateConfig
from holdfast.sources.aws.source import AwsSource

__all__ = ["AwsConfig", "AwsSource", "RateConfig"]
