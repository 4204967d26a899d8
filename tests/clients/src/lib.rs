//! Nothing: the tests of this package are all there is of it.
