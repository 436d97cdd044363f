import teal
from teal.formats.groups import load_groups
from pathlib import Path
print(load_groups(Path('g.json'), teal.load_topology('net.csv')))
