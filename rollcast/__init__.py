"""Rollcast: reinforcement-learning post-training of language models on far-apart machines."""

import os

__version__ = "0.1.0"

# TLS 1.3 alone on gRPC's ports. gRPC (1.85) has no setting for the least version; it reads this one at its import. It
# names the suites of TLS 1.2 only, and this suite needs an RSA certificate. The run's certificates have P-256 keys,
# so no handshake of TLS 1.2 finds a suite in common. TLS 1.3 chooses its suites by itself.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
