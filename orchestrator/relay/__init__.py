"""The encrypted data plane's host end: one TLS port, a connection per lease, a lane per engine. See ``client_sdk.wire``."""
