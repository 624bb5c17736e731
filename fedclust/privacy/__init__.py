"""What leaves a client, and how much it says about it; ``privacy=`` chooses one on the command line."""

from fedclust.privacy.settings import ClientDP, NoPrivacy, Privacy, named

__all__ = ["ClientDP", "NoPrivacy", "Privacy", "named"]
