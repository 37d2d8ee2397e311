"""Public data sets from checked sources, and users' own data.

Imports `records`, `models`, `starts`, `utils`, `errors`.
"""

from steppe.data.arrays import read_array as read_array
from steppe.data.cache import cache_folder as cache_folder
from steppe.data.cache import fetch as fetch
from steppe.data.cache import load as load
from steppe.data.cache import verify as verify
from steppe.data.catalogue import find as find
from steppe.data.catalogue import known as known
from steppe.data.catalogue import names as names
from steppe.data.dataset import Dataset as Dataset
from steppe.data.dataset import MappedDataset as MappedDataset
from steppe.data.dataset import Split as Split
from steppe.data.example import example_table as example_table
from steppe.data.in_memory import from_array as from_array
from steppe.data.in_memory import from_columns as from_columns
from steppe.data.populations import by_attribute as by_attribute
from steppe.data.populations import by_parity as by_parity
from steppe.data.scaling import FROM_RECORDS as FROM_RECORDS
from steppe.data.scaling import read_off as read_off
from steppe.data.starts import fetch_start as fetch_start
from steppe.data.starts import find_start_entry as find_start_entry
from steppe.data.starts import start_names as start_names
from steppe.data.starts import start_path as start_path
from steppe.data.starts import verify_start as verify_start
from steppe.data.user_data import has_column as has_column
from steppe.data.user_data import read as read
from steppe.data.user_data import read_inputs as read_inputs
