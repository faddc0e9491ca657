"""The machine's facts are there on every machine, if only as unknown."""

from benchmarks.machine import facts, models

X86 = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2.00GHz\n"
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n"


def test_the_model_of_a_processor_is_read_where_the_kernel_tells_it() -> None:
    assert list(models(X86)) == ["Some CPU @ 2.00GHz"] * 2
    assert list(models(ARM)) == []


def test_no_fact_is_empty() -> None:
    found = facts()
    assert {"processor", "cores", "memory", "kernel", "python", "grpcio", "protobuf", "load average"} <= set(found)
    assert all(found.values())
