"""Strict configuration: whatever was asked for is in force, refused with its path, or reported as not served yet.

``document`` text to plain values · ``file`` what the file may say · ``check`` plain values against it · ``rules`` what
no type can say · ``durations`` and ``quantities`` how these are written · ``sources`` command line over environment
over file over defaults · ``settings`` what the rest of the agent uses · ``notices`` what the operator should know ·
``named`` which of several files · ``resolve`` all of it together · ``watch`` when it may be another · ``schema`` the
file's form for others.
"""
