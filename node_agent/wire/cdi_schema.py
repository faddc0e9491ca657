"""@generated from cdi/schema by ``make protos``, never edited: ``validate`` checks a CDI spec."""

VERSION = "2.22.3"
from decimal import Decimal
import re
from fastjsonschema import JsonSchemaValueException, JsonSchemaValuesException


REGEX_PATTERNS = {
    '^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$': re.compile('^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\\Z'),
    '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$': re.compile('^(/|(?!\\.{1,2}\\Z)[^/\\n]{0,4095})\\Z'),
    '^([rwm]*|none)$': re.compile('^([rwm]*|none)\\Z'),
    '^[^=]+=': re.compile('^[^=]+='),
    '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$': re.compile('^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?\\Z')
}

NoneType = type(None)

def validate(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'$schema': 'http://json-schema.org/draft-07/schema#', 'title': 'CDI spec', 'type': 'object', 'required': ['cdiVersion', 'kind', 'devices'], 'additionalProperties': False, 'properties': {'cdiVersion': {'enum': ['0.3.0', '0.4.0', '0.5.0', '0.6.0', '0.7.0', '0.8.0', '1.0.0', '1.1.0']}, 'kind': {'type': 'string', 'pattern': '^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'devices': {'type': 'array', 'minItems': 1, 'items': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'$ref': '#/definitions/annotations'}, 'containerEdits': {'$ref': '#/definitions/containerEdits'}}}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}, 'definitions': {'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'device': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNodes': {'type': 'array', 'items': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'$ref': '#/definitions/text'}, 'hostPath': {'$ref': '#/definitions/text'}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'$ref': '#/definitions/deviceNumber'}, 'minor': {'$ref': '#/definitions/deviceNumber'}, 'fileMode': {'$ref': '#/definitions/id'}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'$ref': '#/definitions/id'}, 'gid': {'$ref': '#/definitions/id'}}}}, 'netDevices': {'type': 'array', 'items': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'$ref': '#/definitions/text'}, 'name': {'$ref': '#/definitions/text'}}}}, 'hooks': {'type': 'array', 'items': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'$ref': '#/definitions/text'}, 'args': {'$ref': '#/definitions/texts'}, 'env': {'$ref': '#/definitions/environment'}, 'timeout': {'type': 'integer'}}}}, 'mounts': {'type': 'array', 'items': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'$ref': '#/definitions/text'}, 'containerPath': {'$ref': '#/definitions/text'}, 'options': {'$ref': '#/definitions/texts'}, 'type': {'type': 'string'}}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'$ref': '#/definitions/texts'}, 'enableMonitoring': {'type': 'boolean'}}}, 'additionalGids': {'type': 'array', 'items': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}}, 'deviceNode': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'type': 'string', 'minLength': 1}, 'hostPath': {'type': 'string', 'minLength': 1}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'type': 'integer', 'minimum': 0}, 'minor': {'type': 'integer', 'minimum': 0}, 'fileMode': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'gid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}, 'linuxNetDevice': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'type': 'string', 'minLength': 1}, 'name': {'type': 'string', 'minLength': 1}}}, 'hook': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'type': 'string', 'minLength': 1}, 'args': {'type': 'array', 'items': {'type': 'string'}}, 'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'timeout': {'type': 'integer'}}}, 'mount': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'type': 'string', 'minLength': 1}, 'containerPath': {'type': 'string', 'minLength': 1}, 'options': {'type': 'array', 'items': {'type': 'string'}}, 'type': {'type': 'string'}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'type': 'array', 'items': {'type': 'string'}}, 'enableMonitoring': {'type': 'boolean'}}}, 'environment': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNumber': {'type': 'integer', 'minimum': 0}, 'id': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'text': {'type': 'string', 'minLength': 1}, 'texts': {'type': 'array', 'items': {'type': 'string'}}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data__missing_keys = set(['cdiVersion', 'kind', 'devices']) - data.keys()
        if data__missing_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must contain " + (str(sorted(data__missing_keys)) + " properties"), value=data, name="" + (name_prefix or "data") + "", definition={'$schema': 'http://json-schema.org/draft-07/schema#', 'title': 'CDI spec', 'type': 'object', 'required': ['cdiVersion', 'kind', 'devices'], 'additionalProperties': False, 'properties': {'cdiVersion': {'enum': ['0.3.0', '0.4.0', '0.5.0', '0.6.0', '0.7.0', '0.8.0', '1.0.0', '1.1.0']}, 'kind': {'type': 'string', 'pattern': '^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'devices': {'type': 'array', 'minItems': 1, 'items': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'$ref': '#/definitions/annotations'}, 'containerEdits': {'$ref': '#/definitions/containerEdits'}}}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}, 'definitions': {'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'device': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNodes': {'type': 'array', 'items': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'$ref': '#/definitions/text'}, 'hostPath': {'$ref': '#/definitions/text'}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'$ref': '#/definitions/deviceNumber'}, 'minor': {'$ref': '#/definitions/deviceNumber'}, 'fileMode': {'$ref': '#/definitions/id'}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'$ref': '#/definitions/id'}, 'gid': {'$ref': '#/definitions/id'}}}}, 'netDevices': {'type': 'array', 'items': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'$ref': '#/definitions/text'}, 'name': {'$ref': '#/definitions/text'}}}}, 'hooks': {'type': 'array', 'items': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'$ref': '#/definitions/text'}, 'args': {'$ref': '#/definitions/texts'}, 'env': {'$ref': '#/definitions/environment'}, 'timeout': {'type': 'integer'}}}}, 'mounts': {'type': 'array', 'items': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'$ref': '#/definitions/text'}, 'containerPath': {'$ref': '#/definitions/text'}, 'options': {'$ref': '#/definitions/texts'}, 'type': {'type': 'string'}}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'$ref': '#/definitions/texts'}, 'enableMonitoring': {'type': 'boolean'}}}, 'additionalGids': {'type': 'array', 'items': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}}, 'deviceNode': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'type': 'string', 'minLength': 1}, 'hostPath': {'type': 'string', 'minLength': 1}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'type': 'integer', 'minimum': 0}, 'minor': {'type': 'integer', 'minimum': 0}, 'fileMode': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'gid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}, 'linuxNetDevice': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'type': 'string', 'minLength': 1}, 'name': {'type': 'string', 'minLength': 1}}}, 'hook': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'type': 'string', 'minLength': 1}, 'args': {'type': 'array', 'items': {'type': 'string'}}, 'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'timeout': {'type': 'integer'}}}, 'mount': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'type': 'string', 'minLength': 1}, 'containerPath': {'type': 'string', 'minLength': 1}, 'options': {'type': 'array', 'items': {'type': 'string'}}, 'type': {'type': 'string'}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'type': 'array', 'items': {'type': 'string'}}, 'enableMonitoring': {'type': 'boolean'}}}, 'environment': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNumber': {'type': 'integer', 'minimum': 0}, 'id': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'text': {'type': 'string', 'minLength': 1}, 'texts': {'type': 'array', 'items': {'type': 'string'}}}}, rule='required')
        data_keys = set(data.keys())
        if "cdiVersion" in data_keys:
            data_keys.remove("cdiVersion")
            data__cdiVersion = data["cdiVersion"]
            if not (isinstance(data__cdiVersion, str) and data__cdiVersion == '0.3.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '0.4.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '0.5.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '0.6.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '0.7.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '0.8.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '1.0.0' or isinstance(data__cdiVersion, str) and data__cdiVersion == '1.1.0'):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".cdiVersion must be one of ['0.3.0', '0.4.0', '0.5.0', '0.6.0', '0.7.0', '0.8.0', '1.0.0', '1.1.0']", value=data__cdiVersion, name="" + (name_prefix or "data") + ".cdiVersion", definition={'enum': ['0.3.0', '0.4.0', '0.5.0', '0.6.0', '0.7.0', '0.8.0', '1.0.0', '1.1.0']}, rule='enum')
        if "kind" in data_keys:
            data_keys.remove("kind")
            data__kind = data["kind"]
            if not isinstance(data__kind, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".kind must be string", value=data__kind, name="" + (name_prefix or "data") + ".kind", definition={'type': 'string', 'pattern': '^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'}, rule='type')
            if isinstance(data__kind, str):
                if not REGEX_PATTERNS['^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'].search(data__kind):
                    raise JsonSchemaValueException("" + (name_prefix or "data") + ".kind must match pattern ^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", value=data__kind, name="" + (name_prefix or "data") + ".kind", definition={'type': 'string', 'pattern': '^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'}, rule='pattern')
        if "annotations" in data_keys:
            data_keys.remove("annotations")
            data__annotations = data["annotations"]
            validate___definitions_annotations(data__annotations, custom_formats, (name_prefix or "data") + ".annotations")
        if "devices" in data_keys:
            data_keys.remove("devices")
            data__devices = data["devices"]
            if not isinstance(data__devices, (list, tuple)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".devices must be array", value=data__devices, name="" + (name_prefix or "data") + ".devices", definition={'type': 'array', 'minItems': 1, 'items': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'$ref': '#/definitions/annotations'}, 'containerEdits': {'$ref': '#/definitions/containerEdits'}}}}, rule='type')
            data__devices_is_list = isinstance(data__devices, (list, tuple))
            if data__devices_is_list:
                data__devices_len = len(data__devices)
                if data__devices_len < 1:
                    raise JsonSchemaValueException("" + (name_prefix or "data") + ".devices must contain at least 1 items", value=data__devices, name="" + (name_prefix or "data") + ".devices", definition={'type': 'array', 'minItems': 1, 'items': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'$ref': '#/definitions/annotations'}, 'containerEdits': {'$ref': '#/definitions/containerEdits'}}}}, rule='minItems')
                for data__devices_x, data__devices_item in enumerate(data__devices):
                    validate___definitions_device(data__devices_item, custom_formats, (name_prefix or "data") + ".devices[{data__devices_x}]".format(**locals()))
        if "containerEdits" in data_keys:
            data_keys.remove("containerEdits")
            data__containerEdits = data["containerEdits"]
            validate___definitions_containeredits(data__containerEdits, custom_formats, (name_prefix or "data") + ".containerEdits")
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'$schema': 'http://json-schema.org/draft-07/schema#', 'title': 'CDI spec', 'type': 'object', 'required': ['cdiVersion', 'kind', 'devices'], 'additionalProperties': False, 'properties': {'cdiVersion': {'enum': ['0.3.0', '0.4.0', '0.5.0', '0.6.0', '0.7.0', '0.8.0', '1.0.0', '1.1.0']}, 'kind': {'type': 'string', 'pattern': '^[A-Za-z]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'devices': {'type': 'array', 'minItems': 1, 'items': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'$ref': '#/definitions/annotations'}, 'containerEdits': {'$ref': '#/definitions/containerEdits'}}}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}, 'definitions': {'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'device': {'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNodes': {'type': 'array', 'items': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'$ref': '#/definitions/text'}, 'hostPath': {'$ref': '#/definitions/text'}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'$ref': '#/definitions/deviceNumber'}, 'minor': {'$ref': '#/definitions/deviceNumber'}, 'fileMode': {'$ref': '#/definitions/id'}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'$ref': '#/definitions/id'}, 'gid': {'$ref': '#/definitions/id'}}}}, 'netDevices': {'type': 'array', 'items': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'$ref': '#/definitions/text'}, 'name': {'$ref': '#/definitions/text'}}}}, 'hooks': {'type': 'array', 'items': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'$ref': '#/definitions/text'}, 'args': {'$ref': '#/definitions/texts'}, 'env': {'$ref': '#/definitions/environment'}, 'timeout': {'type': 'integer'}}}}, 'mounts': {'type': 'array', 'items': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'$ref': '#/definitions/text'}, 'containerPath': {'$ref': '#/definitions/text'}, 'options': {'$ref': '#/definitions/texts'}, 'type': {'type': 'string'}}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'$ref': '#/definitions/texts'}, 'enableMonitoring': {'type': 'boolean'}}}, 'additionalGids': {'type': 'array', 'items': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}}, 'deviceNode': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'type': 'string', 'minLength': 1}, 'hostPath': {'type': 'string', 'minLength': 1}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'type': 'integer', 'minimum': 0}, 'minor': {'type': 'integer', 'minimum': 0}, 'fileMode': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'gid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}, 'linuxNetDevice': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'type': 'string', 'minLength': 1}, 'name': {'type': 'string', 'minLength': 1}}}, 'hook': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'type': 'string', 'minLength': 1}, 'args': {'type': 'array', 'items': {'type': 'string'}}, 'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'timeout': {'type': 'integer'}}}, 'mount': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'type': 'string', 'minLength': 1}, 'containerPath': {'type': 'string', 'minLength': 1}, 'options': {'type': 'array', 'items': {'type': 'string'}}, 'type': {'type': 'string'}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'type': 'array', 'items': {'type': 'string'}}, 'enableMonitoring': {'type': 'boolean'}}}, 'environment': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNumber': {'type': 'integer', 'minimum': 0}, 'id': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'text': {'type': 'string', 'minLength': 1}, 'texts': {'type': 'array', 'items': {'type': 'string'}}}}, rule='additionalProperties')
    return data

def validate___definitions_containeredits(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'additionalProperties': False, 'properties': {'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNodes': {'type': 'array', 'items': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'$ref': '#/definitions/text'}, 'hostPath': {'$ref': '#/definitions/text'}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'$ref': '#/definitions/deviceNumber'}, 'minor': {'$ref': '#/definitions/deviceNumber'}, 'fileMode': {'$ref': '#/definitions/id'}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'$ref': '#/definitions/id'}, 'gid': {'$ref': '#/definitions/id'}}}}, 'netDevices': {'type': 'array', 'items': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'$ref': '#/definitions/text'}, 'name': {'$ref': '#/definitions/text'}}}}, 'hooks': {'type': 'array', 'items': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'$ref': '#/definitions/text'}, 'args': {'$ref': '#/definitions/texts'}, 'env': {'$ref': '#/definitions/environment'}, 'timeout': {'type': 'integer'}}}}, 'mounts': {'type': 'array', 'items': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'$ref': '#/definitions/text'}, 'containerPath': {'$ref': '#/definitions/text'}, 'options': {'$ref': '#/definitions/texts'}, 'type': {'type': 'string'}}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'$ref': '#/definitions/texts'}, 'enableMonitoring': {'type': 'boolean'}}}, 'additionalGids': {'type': 'array', 'items': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data_keys = set(data.keys())
        if "env" in data_keys:
            data_keys.remove("env")
            data__env = data["env"]
            validate___definitions_environment(data__env, custom_formats, (name_prefix or "data") + ".env")
        if "deviceNodes" in data_keys:
            data_keys.remove("deviceNodes")
            data__deviceNodes = data["deviceNodes"]
            if not isinstance(data__deviceNodes, (list, tuple)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".deviceNodes must be array", value=data__deviceNodes, name="" + (name_prefix or "data") + ".deviceNodes", definition={'type': 'array', 'items': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'$ref': '#/definitions/text'}, 'hostPath': {'$ref': '#/definitions/text'}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'$ref': '#/definitions/deviceNumber'}, 'minor': {'$ref': '#/definitions/deviceNumber'}, 'fileMode': {'$ref': '#/definitions/id'}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'$ref': '#/definitions/id'}, 'gid': {'$ref': '#/definitions/id'}}}}, rule='type')
            data__deviceNodes_is_list = isinstance(data__deviceNodes, (list, tuple))
            if data__deviceNodes_is_list:
                data__deviceNodes_len = len(data__deviceNodes)
                for data__deviceNodes_x, data__deviceNodes_item in enumerate(data__deviceNodes):
                    validate___definitions_devicenode(data__deviceNodes_item, custom_formats, (name_prefix or "data") + ".deviceNodes[{data__deviceNodes_x}]".format(**locals()))
        if "netDevices" in data_keys:
            data_keys.remove("netDevices")
            data__netDevices = data["netDevices"]
            if not isinstance(data__netDevices, (list, tuple)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".netDevices must be array", value=data__netDevices, name="" + (name_prefix or "data") + ".netDevices", definition={'type': 'array', 'items': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'$ref': '#/definitions/text'}, 'name': {'$ref': '#/definitions/text'}}}}, rule='type')
            data__netDevices_is_list = isinstance(data__netDevices, (list, tuple))
            if data__netDevices_is_list:
                data__netDevices_len = len(data__netDevices)
                for data__netDevices_x, data__netDevices_item in enumerate(data__netDevices):
                    validate___definitions_linuxnetdevice(data__netDevices_item, custom_formats, (name_prefix or "data") + ".netDevices[{data__netDevices_x}]".format(**locals()))
        if "hooks" in data_keys:
            data_keys.remove("hooks")
            data__hooks = data["hooks"]
            if not isinstance(data__hooks, (list, tuple)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".hooks must be array", value=data__hooks, name="" + (name_prefix or "data") + ".hooks", definition={'type': 'array', 'items': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'$ref': '#/definitions/text'}, 'args': {'$ref': '#/definitions/texts'}, 'env': {'$ref': '#/definitions/environment'}, 'timeout': {'type': 'integer'}}}}, rule='type')
            data__hooks_is_list = isinstance(data__hooks, (list, tuple))
            if data__hooks_is_list:
                data__hooks_len = len(data__hooks)
                for data__hooks_x, data__hooks_item in enumerate(data__hooks):
                    validate___definitions_hook(data__hooks_item, custom_formats, (name_prefix or "data") + ".hooks[{data__hooks_x}]".format(**locals()))
        if "mounts" in data_keys:
            data_keys.remove("mounts")
            data__mounts = data["mounts"]
            if not isinstance(data__mounts, (list, tuple)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".mounts must be array", value=data__mounts, name="" + (name_prefix or "data") + ".mounts", definition={'type': 'array', 'items': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'$ref': '#/definitions/text'}, 'containerPath': {'$ref': '#/definitions/text'}, 'options': {'$ref': '#/definitions/texts'}, 'type': {'type': 'string'}}}}, rule='type')
            data__mounts_is_list = isinstance(data__mounts, (list, tuple))
            if data__mounts_is_list:
                data__mounts_len = len(data__mounts)
                for data__mounts_x, data__mounts_item in enumerate(data__mounts):
                    validate___definitions_mount(data__mounts_item, custom_formats, (name_prefix or "data") + ".mounts[{data__mounts_x}]".format(**locals()))
        if "intelRdt" in data_keys:
            data_keys.remove("intelRdt")
            data__intelRdt = data["intelRdt"]
            validate___definitions_intelrdt(data__intelRdt, custom_formats, (name_prefix or "data") + ".intelRdt")
        if "additionalGids" in data_keys:
            data_keys.remove("additionalGids")
            data__additionalGids = data["additionalGids"]
            if not isinstance(data__additionalGids, (list, tuple)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".additionalGids must be array", value=data__additionalGids, name="" + (name_prefix or "data") + ".additionalGids", definition={'type': 'array', 'items': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}, rule='type')
            data__additionalGids_is_list = isinstance(data__additionalGids, (list, tuple))
            if data__additionalGids_is_list:
                data__additionalGids_len = len(data__additionalGids)
                for data__additionalGids_x, data__additionalGids_item in enumerate(data__additionalGids):
                    validate___definitions_id(data__additionalGids_item, custom_formats, (name_prefix or "data") + ".additionalGids[{data__additionalGids_x}]".format(**locals()))
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'additionalProperties': False, 'properties': {'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'deviceNodes': {'type': 'array', 'items': {'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'$ref': '#/definitions/text'}, 'hostPath': {'$ref': '#/definitions/text'}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'$ref': '#/definitions/deviceNumber'}, 'minor': {'$ref': '#/definitions/deviceNumber'}, 'fileMode': {'$ref': '#/definitions/id'}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'$ref': '#/definitions/id'}, 'gid': {'$ref': '#/definitions/id'}}}}, 'netDevices': {'type': 'array', 'items': {'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'$ref': '#/definitions/text'}, 'name': {'$ref': '#/definitions/text'}}}}, 'hooks': {'type': 'array', 'items': {'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'$ref': '#/definitions/text'}, 'args': {'$ref': '#/definitions/texts'}, 'env': {'$ref': '#/definitions/environment'}, 'timeout': {'type': 'integer'}}}}, 'mounts': {'type': 'array', 'items': {'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'$ref': '#/definitions/text'}, 'containerPath': {'$ref': '#/definitions/text'}, 'options': {'$ref': '#/definitions/texts'}, 'type': {'type': 'string'}}}}, 'intelRdt': {'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'$ref': '#/definitions/texts'}, 'enableMonitoring': {'type': 'boolean'}}}, 'additionalGids': {'type': 'array', 'items': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}}, rule='additionalProperties')
    return data

def validate___definitions_id(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (int)) and not (isinstance(data, float) and data.is_integer()) or isinstance(data, bool):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be integer", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, rule='type')
    if isinstance(data, (int, float, Decimal)) and not isinstance(data, bool):
        if data < 0:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must be bigger than or equal to 0", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, rule='minimum')
        if data > 4294967295:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must be smaller than or equal to 4294967295", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, rule='maximum')
    return data

def validate___definitions_intelrdt(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'type': 'array', 'items': {'type': 'string'}}, 'enableMonitoring': {'type': 'boolean'}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data_keys = set(data.keys())
        if "closID" in data_keys:
            data_keys.remove("closID")
            data__closID = data["closID"]
            if not isinstance(data__closID, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".closID must be string", value=data__closID, name="" + (name_prefix or "data") + ".closID", definition={'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, rule='type')
            if isinstance(data__closID, str):
                if not REGEX_PATTERNS['^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'].search(data__closID):
                    raise JsonSchemaValueException("" + (name_prefix or "data") + ".closID must match pattern ^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$", value=data__closID, name="" + (name_prefix or "data") + ".closID", definition={'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, rule='pattern')
        if "l3CacheSchema" in data_keys:
            data_keys.remove("l3CacheSchema")
            data__l3CacheSchema = data["l3CacheSchema"]
            if not isinstance(data__l3CacheSchema, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".l3CacheSchema must be string", value=data__l3CacheSchema, name="" + (name_prefix or "data") + ".l3CacheSchema", definition={'type': 'string'}, rule='type')
        if "memBwSchema" in data_keys:
            data_keys.remove("memBwSchema")
            data__memBwSchema = data["memBwSchema"]
            if not isinstance(data__memBwSchema, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".memBwSchema must be string", value=data__memBwSchema, name="" + (name_prefix or "data") + ".memBwSchema", definition={'type': 'string'}, rule='type')
        if "schemata" in data_keys:
            data_keys.remove("schemata")
            data__schemata = data["schemata"]
            validate___definitions_texts(data__schemata, custom_formats, (name_prefix or "data") + ".schemata")
        if "enableMonitoring" in data_keys:
            data_keys.remove("enableMonitoring")
            data__enableMonitoring = data["enableMonitoring"]
            if not isinstance(data__enableMonitoring, (bool)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".enableMonitoring must be boolean", value=data__enableMonitoring, name="" + (name_prefix or "data") + ".enableMonitoring", definition={'type': 'boolean'}, rule='type')
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'additionalProperties': False, 'properties': {'closID': {'type': 'string', 'pattern': '^(/|(?!\\.{1,2}$)[^/\\n]{0,4095})$'}, 'l3CacheSchema': {'type': 'string'}, 'memBwSchema': {'type': 'string'}, 'schemata': {'type': 'array', 'items': {'type': 'string'}}, 'enableMonitoring': {'type': 'boolean'}}}, rule='additionalProperties')
    return data

def validate___definitions_texts(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (list, tuple)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be array", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'array', 'items': {'type': 'string'}}, rule='type')
    data_is_list = isinstance(data, (list, tuple))
    if data_is_list:
        data_len = len(data)
        for data_x, data_item in enumerate(data):
            if not isinstance(data_item, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + "[{data_x}]".format(**locals()) + " must be string", value=data_item, name="" + (name_prefix or "data") + "[{data_x}]".format(**locals()) + "", definition={'type': 'string'}, rule='type')
    return data

def validate___definitions_mount(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'type': 'string', 'minLength': 1}, 'containerPath': {'type': 'string', 'minLength': 1}, 'options': {'type': 'array', 'items': {'type': 'string'}}, 'type': {'type': 'string'}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data__missing_keys = set(['hostPath', 'containerPath']) - data.keys()
        if data__missing_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must contain " + (str(sorted(data__missing_keys)) + " properties"), value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'type': 'string', 'minLength': 1}, 'containerPath': {'type': 'string', 'minLength': 1}, 'options': {'type': 'array', 'items': {'type': 'string'}}, 'type': {'type': 'string'}}}, rule='required')
        data_keys = set(data.keys())
        if "hostPath" in data_keys:
            data_keys.remove("hostPath")
            data__hostPath = data["hostPath"]
            validate___definitions_text(data__hostPath, custom_formats, (name_prefix or "data") + ".hostPath")
        if "containerPath" in data_keys:
            data_keys.remove("containerPath")
            data__containerPath = data["containerPath"]
            validate___definitions_text(data__containerPath, custom_formats, (name_prefix or "data") + ".containerPath")
        if "options" in data_keys:
            data_keys.remove("options")
            data__options = data["options"]
            validate___definitions_texts(data__options, custom_formats, (name_prefix or "data") + ".options")
        if "type" in data_keys:
            data_keys.remove("type")
            data__type = data["type"]
            if not isinstance(data__type, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".type must be string", value=data__type, name="" + (name_prefix or "data") + ".type", definition={'type': 'string'}, rule='type')
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hostPath', 'containerPath'], 'additionalProperties': False, 'properties': {'hostPath': {'type': 'string', 'minLength': 1}, 'containerPath': {'type': 'string', 'minLength': 1}, 'options': {'type': 'array', 'items': {'type': 'string'}}, 'type': {'type': 'string'}}}, rule='additionalProperties')
    return data

def validate___definitions_text(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (str)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be string", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'string', 'minLength': 1}, rule='type')
    if isinstance(data, str):
        data_len = len(data)
        if data_len < 1:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must be longer than or equal to 1 characters", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'string', 'minLength': 1}, rule='minLength')
    return data

def validate___definitions_hook(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'type': 'string', 'minLength': 1}, 'args': {'type': 'array', 'items': {'type': 'string'}}, 'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'timeout': {'type': 'integer'}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data__missing_keys = set(['hookName', 'path']) - data.keys()
        if data__missing_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must contain " + (str(sorted(data__missing_keys)) + " properties"), value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'type': 'string', 'minLength': 1}, 'args': {'type': 'array', 'items': {'type': 'string'}}, 'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'timeout': {'type': 'integer'}}}, rule='required')
        data_keys = set(data.keys())
        if "hookName" in data_keys:
            data_keys.remove("hookName")
            data__hookName = data["hookName"]
            if not (isinstance(data__hookName, str) and data__hookName == 'prestart' or isinstance(data__hookName, str) and data__hookName == 'createRuntime' or isinstance(data__hookName, str) and data__hookName == 'createContainer' or isinstance(data__hookName, str) and data__hookName == 'startContainer' or isinstance(data__hookName, str) and data__hookName == 'poststart' or isinstance(data__hookName, str) and data__hookName == 'poststop'):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".hookName must be one of ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']", value=data__hookName, name="" + (name_prefix or "data") + ".hookName", definition={'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, rule='enum')
        if "path" in data_keys:
            data_keys.remove("path")
            data__path = data["path"]
            validate___definitions_text(data__path, custom_formats, (name_prefix or "data") + ".path")
        if "args" in data_keys:
            data_keys.remove("args")
            data__args = data["args"]
            validate___definitions_texts(data__args, custom_formats, (name_prefix or "data") + ".args")
        if "env" in data_keys:
            data_keys.remove("env")
            data__env = data["env"]
            validate___definitions_environment(data__env, custom_formats, (name_prefix or "data") + ".env")
        if "timeout" in data_keys:
            data_keys.remove("timeout")
            data__timeout = data["timeout"]
            if not isinstance(data__timeout, (int)) and not (isinstance(data__timeout, float) and data__timeout.is_integer()) or isinstance(data__timeout, bool):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".timeout must be integer", value=data__timeout, name="" + (name_prefix or "data") + ".timeout", definition={'type': 'integer'}, rule='type')
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hookName', 'path'], 'additionalProperties': False, 'properties': {'hookName': {'enum': ['prestart', 'createRuntime', 'createContainer', 'startContainer', 'poststart', 'poststop']}, 'path': {'type': 'string', 'minLength': 1}, 'args': {'type': 'array', 'items': {'type': 'string'}}, 'env': {'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, 'timeout': {'type': 'integer'}}}, rule='additionalProperties')
    return data

def validate___definitions_linuxnetdevice(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'type': 'string', 'minLength': 1}, 'name': {'type': 'string', 'minLength': 1}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data__missing_keys = set(['hostInterfaceName', 'name']) - data.keys()
        if data__missing_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must contain " + (str(sorted(data__missing_keys)) + " properties"), value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'type': 'string', 'minLength': 1}, 'name': {'type': 'string', 'minLength': 1}}}, rule='required')
        data_keys = set(data.keys())
        if "hostInterfaceName" in data_keys:
            data_keys.remove("hostInterfaceName")
            data__hostInterfaceName = data["hostInterfaceName"]
            validate___definitions_text(data__hostInterfaceName, custom_formats, (name_prefix or "data") + ".hostInterfaceName")
        if "name" in data_keys:
            data_keys.remove("name")
            data__name = data["name"]
            validate___definitions_text(data__name, custom_formats, (name_prefix or "data") + ".name")
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['hostInterfaceName', 'name'], 'additionalProperties': False, 'properties': {'hostInterfaceName': {'type': 'string', 'minLength': 1}, 'name': {'type': 'string', 'minLength': 1}}}, rule='additionalProperties')
    return data

def validate___definitions_devicenode(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'type': 'string', 'minLength': 1}, 'hostPath': {'type': 'string', 'minLength': 1}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'type': 'integer', 'minimum': 0}, 'minor': {'type': 'integer', 'minimum': 0}, 'fileMode': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'gid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data__missing_keys = set(['path']) - data.keys()
        if data__missing_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must contain " + (str(sorted(data__missing_keys)) + " properties"), value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'type': 'string', 'minLength': 1}, 'hostPath': {'type': 'string', 'minLength': 1}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'type': 'integer', 'minimum': 0}, 'minor': {'type': 'integer', 'minimum': 0}, 'fileMode': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'gid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}, rule='required')
        data_keys = set(data.keys())
        if "path" in data_keys:
            data_keys.remove("path")
            data__path = data["path"]
            validate___definitions_text(data__path, custom_formats, (name_prefix or "data") + ".path")
        if "hostPath" in data_keys:
            data_keys.remove("hostPath")
            data__hostPath = data["hostPath"]
            validate___definitions_text(data__hostPath, custom_formats, (name_prefix or "data") + ".hostPath")
        if "type" in data_keys:
            data_keys.remove("type")
            data__type = data["type"]
            if not (isinstance(data__type, str) and data__type == 'b' or isinstance(data__type, str) and data__type == 'c' or isinstance(data__type, str) and data__type == 'u' or isinstance(data__type, str) and data__type == 'p'):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".type must be one of ['b', 'c', 'u', 'p']", value=data__type, name="" + (name_prefix or "data") + ".type", definition={'enum': ['b', 'c', 'u', 'p']}, rule='enum')
        if "major" in data_keys:
            data_keys.remove("major")
            data__major = data["major"]
            validate___definitions_devicenumber(data__major, custom_formats, (name_prefix or "data") + ".major")
        if "minor" in data_keys:
            data_keys.remove("minor")
            data__minor = data["minor"]
            validate___definitions_devicenumber(data__minor, custom_formats, (name_prefix or "data") + ".minor")
        if "fileMode" in data_keys:
            data_keys.remove("fileMode")
            data__fileMode = data["fileMode"]
            validate___definitions_id(data__fileMode, custom_formats, (name_prefix or "data") + ".fileMode")
        if "permissions" in data_keys:
            data_keys.remove("permissions")
            data__permissions = data["permissions"]
            if not isinstance(data__permissions, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".permissions must be string", value=data__permissions, name="" + (name_prefix or "data") + ".permissions", definition={'type': 'string', 'pattern': '^([rwm]*|none)$'}, rule='type')
            if isinstance(data__permissions, str):
                if not REGEX_PATTERNS['^([rwm]*|none)$'].search(data__permissions):
                    raise JsonSchemaValueException("" + (name_prefix or "data") + ".permissions must match pattern ^([rwm]*|none)$", value=data__permissions, name="" + (name_prefix or "data") + ".permissions", definition={'type': 'string', 'pattern': '^([rwm]*|none)$'}, rule='pattern')
        if "uid" in data_keys:
            data_keys.remove("uid")
            data__uid = data["uid"]
            validate___definitions_id(data__uid, custom_formats, (name_prefix or "data") + ".uid")
        if "gid" in data_keys:
            data_keys.remove("gid")
            data__gid = data["gid"]
            validate___definitions_id(data__gid, custom_formats, (name_prefix or "data") + ".gid")
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['path'], 'additionalProperties': False, 'properties': {'path': {'type': 'string', 'minLength': 1}, 'hostPath': {'type': 'string', 'minLength': 1}, 'type': {'enum': ['b', 'c', 'u', 'p']}, 'major': {'type': 'integer', 'minimum': 0}, 'minor': {'type': 'integer', 'minimum': 0}, 'fileMode': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'permissions': {'type': 'string', 'pattern': '^([rwm]*|none)$'}, 'uid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}, 'gid': {'type': 'integer', 'minimum': 0, 'maximum': 4294967295}}}, rule='additionalProperties')
    return data

def validate___definitions_devicenumber(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (int)) and not (isinstance(data, float) and data.is_integer()) or isinstance(data, bool):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be integer", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'integer', 'minimum': 0}, rule='type')
    if isinstance(data, (int, float, Decimal)) and not isinstance(data, bool):
        if data < 0:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must be bigger than or equal to 0", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'integer', 'minimum': 0}, rule='minimum')
    return data

def validate___definitions_environment(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (list, tuple)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be array", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'array', 'items': {'type': 'string', 'pattern': '^[^=]+='}}, rule='type')
    data_is_list = isinstance(data, (list, tuple))
    if data_is_list:
        data_len = len(data)
        for data_x, data_item in enumerate(data):
            if not isinstance(data_item, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + "[{data_x}]".format(**locals()) + " must be string", value=data_item, name="" + (name_prefix or "data") + "[{data_x}]".format(**locals()) + "", definition={'type': 'string', 'pattern': '^[^=]+='}, rule='type')
            if isinstance(data_item, str):
                if not REGEX_PATTERNS['^[^=]+='].search(data_item):
                    raise JsonSchemaValueException("" + (name_prefix or "data") + "[{data_x}]".format(**locals()) + " must match pattern ^[^=]+=", value=data_item, name="" + (name_prefix or "data") + "[{data_x}]".format(**locals()) + "", definition={'type': 'string', 'pattern': '^[^=]+='}, rule='pattern')
    return data

def validate___definitions_device(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data__missing_keys = set(['name', 'containerEdits']) - data.keys()
        if data__missing_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must contain " + (str(sorted(data__missing_keys)) + " properties"), value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}}, rule='required')
        data_keys = set(data.keys())
        if "name" in data_keys:
            data_keys.remove("name")
            data__name = data["name"]
            if not isinstance(data__name, (str)):
                raise JsonSchemaValueException("" + (name_prefix or "data") + ".name must be string", value=data__name, name="" + (name_prefix or "data") + ".name", definition={'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, rule='type')
            if isinstance(data__name, str):
                if not REGEX_PATTERNS['^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'].search(data__name):
                    raise JsonSchemaValueException("" + (name_prefix or "data") + ".name must match pattern ^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$", value=data__name, name="" + (name_prefix or "data") + ".name", definition={'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, rule='pattern')
        if "annotations" in data_keys:
            data_keys.remove("annotations")
            data__annotations = data["annotations"]
            validate___definitions_annotations(data__annotations, custom_formats, (name_prefix or "data") + ".annotations")
        if "containerEdits" in data_keys:
            data_keys.remove("containerEdits")
            data__containerEdits = data["containerEdits"]
            validate___definitions_containeredits(data__containerEdits, custom_formats, (name_prefix or "data") + ".containerEdits")
        if data_keys:
            raise JsonSchemaValueException("" + (name_prefix or "data") + " must not contain "+str(data_keys)+" properties", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'required': ['name', 'containerEdits'], 'additionalProperties': False, 'properties': {'name': {'type': 'string', 'pattern': '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'}, 'annotations': {'type': 'object', 'additionalProperties': {'type': 'string'}}, 'containerEdits': {'type': 'object', 'additionalProperties': False, 'properties': {'env': {'$ref': '#/definitions/environment'}, 'deviceNodes': {'type': 'array', 'items': {'$ref': '#/definitions/deviceNode'}}, 'netDevices': {'type': 'array', 'items': {'$ref': '#/definitions/linuxNetDevice'}}, 'hooks': {'type': 'array', 'items': {'$ref': '#/definitions/hook'}}, 'mounts': {'type': 'array', 'items': {'$ref': '#/definitions/mount'}}, 'intelRdt': {'$ref': '#/definitions/intelRdt'}, 'additionalGids': {'type': 'array', 'items': {'$ref': '#/definitions/id'}}}}}}, rule='additionalProperties')
    return data

def validate___definitions_annotations(data, custom_formats={}, name_prefix=None):
    if not isinstance(data, (dict)):
        raise JsonSchemaValueException("" + (name_prefix or "data") + " must be object", value=data, name="" + (name_prefix or "data") + "", definition={'type': 'object', 'additionalProperties': {'type': 'string'}}, rule='type')
    data_is_dict = isinstance(data, dict)
    if data_is_dict:
        data_keys = set(data.keys())
        for data_key in data_keys:
            if data_key not in []:
                data_value = data.get(data_key)
                if not isinstance(data_value, (str)):
                    raise JsonSchemaValueException("" + (name_prefix or "data") + ".{data_key}".format(**locals()) + " must be string", value=data_value, name="" + (name_prefix or "data") + ".{data_key}".format(**locals()) + "", definition={'type': 'string'}, rule='type')
    return data