"""A host on EC2, driven from the user's own machine: ``cornerman ec2 up | status | down | connect`` (needs the extra ``ec2``)."""
