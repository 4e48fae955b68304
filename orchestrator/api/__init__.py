"""The REST API: Flask with an OpenAPI document made from the code. API and pool meet in the store, and nowhere else."""
