"""The page of a schedule inside one accelerator: `chip.json` of `accelerate --out`.

chip_view.py     what chip.json says
group_strip.py   groups along the network, their parts in the order in which they run
memory_map.py    what lies where in a buffer, from when to when
engine_gantt.py  what each engine does when
chip_page.py     the page: these, the roofline and a sweep
"""
