"""Secret random numbers: a cryptographic stream, normal values from it, and what user code draws.

Imports only `errors` and `utils`.
"""

from steppe.randomness.global_generators import global_generators_kept as global_generators_kept
from steppe.randomness.global_generators import global_state as global_state
from steppe.randomness.global_generators import one_at_a_time as one_at_a_time
from steppe.randomness.global_generators import seed_global_generators as seed_global_generators
from steppe.randomness.precision import require_noise_dtype as require_noise_dtype
from steppe.randomness.precision import require_noise_std as require_noise_std
from steppe.randomness.secret_generators import SecretGenerators as SecretGenerators
from steppe.randomness.secret_generators import SecretWorker as SecretWorker
from steppe.randomness.secret_generators import give_numbers_of as give_numbers_of
from steppe.randomness.source import SecureSource as SecureSource
from steppe.randomness.source import SeededSource as SeededSource
from steppe.randomness.source import Source as Source
from steppe.randomness.source import as_source as as_source
