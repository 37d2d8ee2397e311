"""Proves from the operations of a pass that a record's gradient depends on that record alone.

Imports `gradients` and what lies below it. Other rooms import it inside functions, because it loads
slow parts of torch.
"""

from steppe.isolation.findings import OWNED as OWNED
from steppe.isolation.findings import RANDOM as RANDOM
from steppe.isolation.findings import Finding as Finding
from steppe.isolation.findings import NotIsolated as NotIsolated
from steppe.isolation.findings import Owned as Owned
from steppe.isolation.kept_attributes import attributes_kept as attributes_kept
from steppe.isolation.owners import FREE as FREE
from steppe.isolation.owners import MIXED as MIXED
from steppe.isolation.owners import everywhere as everywhere
from steppe.isolation.owners import join as join
from steppe.isolation.owners import joined_over as joined_over
from steppe.isolation.owners import on_axis as on_axis
from steppe.isolation.pipelines import follow_collate as follow_collate
from steppe.isolation.proof import Proof as Proof
from steppe.isolation.proof import prove as prove
from steppe.isolation.rules import rule_of as rule_of
from steppe.isolation.rules.arguments import aligned as aligned
from steppe.isolation.rules.arguments import axes_of as axes_of
from steppe.isolation.rules.arguments import without as without
from steppe.isolation.schemas import by_name as by_name
from steppe.isolation.schemas import storage_of as storage_of
from steppe.isolation.schemas import tensors_among as tensors_among
from steppe.isolation.schemas import written_by as written_by
from steppe.isolation.trace import Follower as Follower
from steppe.isolation.trace import plain_operations as plain_operations
from steppe.isolation.trace import quiet as quiet
from steppe.isolation.watch import Watch as Watch
from steppe.isolation.where import Layers as Layers
from steppe.isolation.where import line_of_user as line_of_user
