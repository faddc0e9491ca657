"""What /sys tells of NUMA nodes, and that a gap in it costs only itself."""

from pathlib import Path

from node_agent.hardware.numa import NumaNode, numa_nodes


def write(root: Path, number: int, **files: str) -> Path:
    folder = root / f"devices/system/node/node{number}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def test_a_node_has_its_cpus_memory_huge_pages_and_distances(tmp_path: Path) -> None:
    meminfo = "Node 0 MemTotal:       263812064 kB\nNode 0 MemFree:        1 kB\n"
    folder = write(tmp_path, 0, cpulist="0-3,8-11\n", meminfo=meminfo, distance="10 21\n")
    for size, count in (("2048", "512"), ("1048576", "0")):
        (folder / f"hugepages/hugepages-{size}kB").mkdir(parents=True)
        (folder / f"hugepages/hugepages-{size}kB/nr_hugepages").write_text(f"{count}\n")
    write(tmp_path, 1, cpulist="4-7,12\n", distance="21 10\n")
    assert numa_nodes(tmp_path) == {
        0: NumaNode(
            cpus=frozenset([0, 1, 2, 3, 8, 9, 10, 11]),
            memory=263812064 << 10,
            huge_pages={2048: 1 << 30},
            distances={0: 10, 1: 21},
        ),
        1: NumaNode(cpus=frozenset([4, 5, 6, 7, 12]), distances={0: 21, 1: 10}),
    }


def test_numbers_with_gaps_keep_their_distances(tmp_path: Path) -> None:
    for number, distance in ((0, "10 20 40"), (2, "20 10 40"), (10, "40 40 10")):
        write(tmp_path, number, cpulist="", distance=distance)
    assert numa_nodes(tmp_path)[2].distances == {0: 20, 2: 10, 10: 40}


def test_a_kernel_that_tells_nothing_shows_no_nodes(tmp_path: Path) -> None:
    assert numa_nodes(tmp_path) == {}
    write(tmp_path, 0)
    assert numa_nodes(tmp_path) == {0: NumaNode()}
