"""The kubelet's gRPC contracts: stubs generated from ``protos/`` by ``make protos`` and never edited.

The file ``protos/<api>_<version>.proto`` gives two modules here, with their types beside them:

- ``<api>_<version>_pb2``: the messages, such as ``deviceplugin_v1beta1_pb2.Device``;
- ``<api>_<version>_pb2_grpc``: for each service the stub that calls it, the servicer to derive from, and the function
  that adds a servicer to a ``grpc.aio`` server.

The kubelet calls the agent by ``pluginregistration_v1``, ``deviceplugin_v1beta1`` (``DevicePlugin``), ``dra_v1``,
``dra_v1beta1``, ``dra_health_v1`` and ``dra_health_v1alpha1``; the agent calls the kubelet by ``podresources_v1`` and
``deviceplugin_v1beta1`` (``Registration``). What the kubelet really does with a field stands in the ``.proto`` file.
Only the adapters above this package (``kubelet``, ``deviceplugin``, ``dra``) see these types. Classes of ``grpc.aio``
take type arguments for mypy alone: a servicer writes ``context: "grpc.aio.ServicerContext[Any, Any]"``, in quotes.

``cdi_schema`` is generated, too, from the schema of CDI specs in ``cdi/schema``.
"""
