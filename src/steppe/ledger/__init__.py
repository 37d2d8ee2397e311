"""The privacy cost of all runs on a data set, written to a file before steps are taken.

Imports `plan`, `accounting`, `utils`, `errors`.
"""

from steppe.ledger.account import Account as Account
from steppe.ledger.account import pause_quietly as pause_quietly
from steppe.ledger.chain import Anchor as Anchor
from steppe.ledger.chain import storage_error as storage_error
from steppe.ledger.ledger import Ledger as Ledger
from steppe.ledger.runs import LedgerRun as LedgerRun
from steppe.ledger.runs import LedgerState as LedgerState
