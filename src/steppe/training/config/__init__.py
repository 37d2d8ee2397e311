"""A run from a TOML file: reading it, filling its gaps by rule, and making its objects."""

from steppe.training.config.config import Config as Config
from steppe.training.config.config import read as read
from steppe.training.config.config import resume as resume
