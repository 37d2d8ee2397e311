from steppe.noise.gaussian import Gaussian as Gaussian
from steppe.noise.source import SecureSource as SecureSource
from steppe.noise.source import SeededSource as SeededSource
from steppe.noise.source import Source as Source
from steppe.noise.source import as_source as as_source
