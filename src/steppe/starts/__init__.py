"""Starts: weights trained on public data, each in a file with a card that says on which.

Imports `utils`, `errors`.
"""

from steppe.starts.card import Card as Card
from steppe.starts.card import PublicRecords as PublicRecords
from steppe.starts.files import Start as Start
from steppe.starts.files import read_start as read_start
from steppe.starts.files import weights_digest as weights_digest
from steppe.starts.files import write_start as write_start
from steppe.starts.noted import begins_with as begins_with
from steppe.starts.noted import begins_with_those_of as begins_with_those_of
from steppe.starts.noted import starts_of as starts_of
