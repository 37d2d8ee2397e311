from steppe.noise.gaussian import Gaussian as Gaussian
