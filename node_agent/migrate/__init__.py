"""From NVIDIA's agents to this one: their Helm values and ConfigMaps in, our configuration and its DaemonSet out.

``keys`` says what can become of a key, ``tables`` what becomes of each one, by chart; ``readers`` make something of its
value. ``documents`` tells what a file is and walks through it, ``compose`` puts together what was found, and
``overlay`` lays it out for kustomize. All of it is pure: values in, values out. Nothing is dropped without a word.
"""
