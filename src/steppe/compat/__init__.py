"""Loops written for Opacus, run by this library's engine: change the import, keep the code.

Imports `private`, `mechanism`, `probing`, `plan` and lower layers.
"""

from steppe.compat.accountant import create_accountant as create_accountant
from steppe.compat.memory_manager import BatchMemoryManager as BatchMemoryManager
from steppe.compat.module_validator import ModuleValidator as ModuleValidator
from steppe.compat.noise_multiplier import get_noise_multiplier as get_noise_multiplier
from steppe.compat.privacy_engine import PrivacyEngine as PrivacyEngine
