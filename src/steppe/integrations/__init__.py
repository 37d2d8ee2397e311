"""Other libraries' own ways of training, made private. Each module needs its library's extra.

Imports `private`, `ledger`, `plan`, `records` and lower layers. Nothing is imported here, because
the libraries are optional: `from steppe.integrations.transformers import PrivateTrainer`.
"""
