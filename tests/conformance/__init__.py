"""Does a frontend notice that the kernel is sandboxed? Plain ipykernel and public suites decide."""
