"""Sensitive system calls: which (``calls``), how they are made (``making``), and what must go on working
(``workload``)."""
