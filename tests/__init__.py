"""The tests, by reach: unit, contract, integration, acceptance, chaos."""
