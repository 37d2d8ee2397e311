"""Does a record's gradient depend on that record alone? Proven from the operations of a pass."""

from steppe.isolation.proof import Proof as Proof
from steppe.isolation.proof import prove as prove
