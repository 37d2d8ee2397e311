"""The user's data as numbered records: tensors, arrays, data sets and loaders.

Imports `isolation`, `randomness`, `utils`, `errors`.
"""

from steppe.records.adapt import as_records as as_records
from steppe.records.arrays import SubsetRecords as SubsetRecords
from steppe.records.arrays import WidenedRecords as WidenedRecords
from steppe.records.labels import check_labels as check_labels
from steppe.records.labels import labels as labels
from steppe.records.overlap import share_records as share_records
from steppe.records.owner_checks import check_for_owner as check_for_owner
from steppe.records.owner_checks import read_by_checks as read_by_checks
from steppe.records.records import Records as Records
