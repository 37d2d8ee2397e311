"""What was spent, written before it is spent."""

from steppe.ledger.account import Account as Account
from steppe.ledger.chain import Anchor as Anchor
from steppe.ledger.ledger import Ledger as Ledger
from steppe.ledger.runs import Run as Run
