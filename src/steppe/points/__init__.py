from steppe.points.here import Here as Here
