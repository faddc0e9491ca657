"""Which files of a driver installation belong into a container, as data. ``driver`` looks for them.

The lists follow what NVIDIA's driver installs and what the container toolkit gives to containers (v1.20), so that a
container finds with the agent what it finds with the toolkit.
"""

# What a current driver installs as <name>.so.<its version>, by what needs it. Whatever else carries the version is
# taken as well; this table only says whose absence is worth a note.
LIBRARIES = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"),
    "compute": (
        "libcuda",
        "libcudadebugger",
        "libnvidia-opencl",
        "libnvidia-gpucomp",
        "libnvidia-ptxjitcompiler",
        "libnvidia-nvvm",
        "libnvidia-allocator",
        "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3",
        "libnvidia-sandboxutils",
    ),
    "video": ("libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"),
    "graphics": (
        "libGLX_nvidia",
        "libEGL_nvidia",
        "libGLESv1_CM_nvidia",
        "libGLESv2_nvidia",
        "libnvidia-glcore",
        "libnvidia-eglcore",
        "libnvidia-glsi",
        "libnvidia-tls",
        "libnvidia-rtcore",
        "libnvidia-fbc",
        "libnvidia-glvkspirv",
        "libnvoptix",
    ),
    "ngx": ("libnvidia-ngx",),
}

# Where neither of these is, there is no driver.
REQUIRED = ("libcuda", "libnvidia-ml")

# Libraries that come with the driver and are numbered on their own.
UNVERSIONED = (
    "libnvidia-api.so.1",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
    "libnvidia-nvvm70.so.*",
)

# Further names that programs load a library by, and what each is a link to: ldconfig makes none of these. Programs open
# libcuda.so without a number, GLX asks for an indirect driver, GBM for a file that is named after the kernel's module.
LINKS = {
    "libcuda": {"libcuda.so": "{soname}"},
    "libGLX_nvidia": {"libGLX_indirect.so.0": "{name}"},
    "libnvidia-opticalflow": {"libnvidia-opticalflow.so": "{soname}"},
    "libnvidia-allocator": {"gbm/nvidia-drm_gbm.so": "../{soname}"},
    "libnvidia-vulkan-producer": {"libnvidia-vulkan-producer.so": "{name}"},
    "libglxserver_nvidia": {"libglxserver_nvidia.so": "{name}"},
}

# Where libraries lie, besides the folders that the loader's cache names; the first that has one wins. A driver that was
# unpacked into a folder of its own, as on GKE, may have them at the top of its root.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib",
    "/",
)
LIBRARY_SUBFOLDERS = ("", "vdpau")

# Modules of the X server keep their folders in a container, since X.Org's settings name these. They lie in a folder of
# the distribution's, or below a folder of libraries.
XORG_MODULES = ("nvidia_drv.so", "libglxserver_nvidia.so.{version}")
XORG_FOLDERS = tuple(
    f"{base}/{modules}/{kind}"
    for base in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for modules in ("modules", "modules/updates")
    for kind in ("drivers", "extensions")
)
XORG_SUBFOLDERS = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)

BINARIES = {
    "nvidia-smi": "utility",
    "nvidia-debugdump": "utility",
    "nvidia-persistenced": "utility",
    "nvidia-cuda-mps-control": "MPS",
    "nvidia-cuda-mps-server": "MPS",
    "nvidia-imex": "IMEX",
    "nvidia-imex-ctl": "IMEX",
    "nvidia-xconfig": "graphics",
}
BINARY_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# What programs in a container talk to, and where that may be; the first that exists.
SOCKETS = {
    "persistence daemon": ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
    "fabric manager": ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
    "MPS daemon": ("/tmp/nvidia-mps",),
}

# Where the kernel looks for firmware, after the folder that its own parameter names.
FIRMWARE = ("gsp*.bin", "ucodes*.bin")
FIRMWARE_FOLDERS = (
    "/lib/firmware/updates/{kernel}",
    "/lib/firmware/updates",
    "/lib/firmware/{kernel}",
    "/lib/firmware",
)

CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
VULKAN_FOLDERS = (*CONFIG_FOLDERS, "/")
SHARED_CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "nvidia/nvidia-application-profiles-{version}-rc",
    "nvidia/nvidia-application-profiles-{version}-key-documentation",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
OPENCL_CONFIGS = ("OpenCL/vendors/nvidia.icd",)
# RPM packages put the architecture into the name.
VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.{architecture}.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
# The names of files, where those may lie on the host, and the one folder that loaders in a container search for them.
CONFIGS = (
    (SHARED_CONFIGS, CONFIG_FOLDERS, "/usr/share"),
    (OPENCL_CONFIGS, CONFIG_FOLDERS, "/etc"),
    (VULKAN_CONFIGS, VULKAN_FOLDERS, "/etc"),
)
