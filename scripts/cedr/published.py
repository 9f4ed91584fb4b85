"""What was published of CEDR's experiments on ZCU102 boards; the page compares with it.

Tables are from the slides of the translator (AICCSA 2023, DOI 10.1109/AICCSA59173.2023.10479315;
read off plots, 1-2%) and from result files in the repository UA-RCL/CEDR (96eeda6).
"""

from __future__ import annotations

DETECTION_S = {
    "rr": (7.46, 7.46, 10.15, 10.08),
    "eft": (7.50, 7.49, 6.42, 6.25),
    "etf": (7.50, 7.49, 7.03, 6.36),
    "heft_rt": (7.50, 7.49, 7.03, 6.36),
}
"""One instance of object detection on three CPUs, with neither, zip, conv2d, both."""
INSTANCES_S = {
    "eft": (6.24, 5.34, 4.92, 4.90, 4.68, 4.98, 4.77, 4.74, 4.93, 4.91),
    "etf": (6.36, 5.28, 4.90, 4.93, 4.83, 4.98, 4.77, 4.75, 4.85, 4.78),
    "heft_rt": (6.38, 5.27, 5.02, 5.12, 5.01, 4.91, 4.80, 4.76, 4.86, 4.92),
}
"""Seconds per instance for 1 to 10 that arrive at once, on three CPUs, conv2d and zip."""
MIX_MBPS = (10, 50, 100, 200, 500, 1000, 2000)
MIX_MS = {
    "1 cpu": {"rr": (63, 397, 450, 469, 464, 466, 481)},
    "3 cpu": {
        "rr": (30, 103, 162, 178, 182, 186, 191),
        "met": (34, 122, 164, 177, 179, 193, 188),
        "eft": (30, 107, 153, 180, 179, 184, 200),
        "etf": (31, 138, 207, 298, 269, 321, 343),
        "heft_rt": (47, 140, 223, 282, 277, 291, 283),
    },
}
"""Execution time of an application of the signal mix, ms, by rate; DAG mode."""
ACCELERATED_MIX_MS = (222, 241, 219, 692, 225)
"""The same at 2000 Mbps with FFT and matrix units beside three CPUs, by the policies above."""
MIX_BITS = 1_012_700
"""Input of one WiFi-TX and one pulse Doppler: rate in Mbps = this / period in us."""
FFT_US = {"cpu": 132.955, "fft": 119.456}
ZIP_US = {"cpu": 69_097.954, "zip": 4_711.408}
"""Example costs of CEDR's generator of configurations, one call each."""
