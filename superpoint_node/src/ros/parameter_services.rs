//! What `ros2 param` talks to: the services of `rcl_interfaces` and `/parameter_events`, over the table of
//! `parameters`.
//!
//! r2r brings such services, but theirs pass on no ranges and no read-only flags, set parameters one by one, and
//! announce nothing on `/parameter_events`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use r2r::rcl_interfaces::msg::{
    FloatingPointRange, IntegerRange, ListParametersResult, Parameter, ParameterDescriptor, ParameterEvent,
    ParameterType, ParameterValue as ValueMessage, SetParametersResult,
};
use r2r::rcl_interfaces::srv::{
    DescribeParameters, GetParameterTypes, GetParameters, ListParameters, SetParameters, SetParametersAtomically,
};
use r2r::{Clock, Node, ParameterValue, Publisher, QosProfile, ServiceRequest};

use super::parameters::{Kind, NodeParameters, TABLE, alternatives};

/// The services, until the node ends.
pub(super) struct ParameterServices {
    parameters: Arc<Mutex<NodeParameters>>,
    node: String,
    clock: Arc<Mutex<Clock>>,
    events: Publisher<ParameterEvent>,
    get: Requests<GetParameters::Service>,
    types: Requests<GetParameterTypes::Service>,
    set: Requests<SetParameters::Service>,
    set_atomically: Requests<SetParametersAtomically::Service>,
    describe: Requests<DescribeParameters::Service>,
    list: Requests<ListParameters::Service>,
}

type Requests<T> = BoxStream<'static, ServiceRequest<T>>;

impl ParameterServices {
    /// Offers the services and announces the parameters.
    pub(super) fn start(node: &mut Node, parameters: Arc<Mutex<NodeParameters>>) -> r2r::Result<Self> {
        macro_rules! service {
            ($service:ident, $name:literal) => {
                node.create_service::<$service::Service>(concat!("~/", $name), QosProfile::parameters())?.boxed()
            };
        }
        let services = Self {
            parameters,
            node: node.fully_qualified_name()?,
            clock: node.get_ros_clock(),
            events: node.create_publisher("/parameter_events", QosProfile::parameter_events())?,
            get: service!(GetParameters, "get_parameters"),
            types: service!(GetParameterTypes, "get_parameter_types"),
            set: service!(SetParameters, "set_parameters"),
            set_atomically: service!(SetParametersAtomically, "set_parameters_atomically"),
            describe: service!(DescribeParameters, "describe_parameters"),
            list: service!(ListParameters, "list_parameters"),
        };
        let all: Vec<Parameter> = {
            let parameters = services.lock();
            TABLE.iter().map(|entry| parameter(&parameters, entry.name)).collect()
        };
        services.announce(ParameterEvent { new_parameters: all, ..ParameterEvent::default() });
        Ok(services)
    }

    /// Answers what has been asked since the last time.
    pub(super) fn serve(&mut self) {
        while let Some(request) = next(&mut self.get) {
            let values = request.message.names.iter().map(|name| value(&self.lock(), name)).collect();
            answer(request, GetParameters::Response { values });
        }
        while let Some(request) = next(&mut self.types) {
            let types = request.message.names.iter().map(|name| value(&self.lock(), name).type_).collect();
            answer(request, GetParameterTypes::Response { types });
        }
        while let Some(request) = next(&mut self.set) {
            let each = request.message.parameters.iter();
            let results = each.map(|parameter| self.set_together(std::slice::from_ref(parameter))).collect();
            answer(request, SetParameters::Response { results });
        }
        while let Some(request) = next(&mut self.set_atomically) {
            let result = self.set_together(&request.message.parameters);
            answer(request, SetParametersAtomically::Response { result });
        }
        while let Some(request) = next(&mut self.describe) {
            let descriptors = request.message.names.iter().map(|name| descriptor(&self.lock(), name)).collect();
            answer(request, DescribeParameters::Response { descriptors });
        }
        while let Some(request) = next(&mut self.list) {
            let result = list(&request.message.prefixes, request.message.depth);
            answer(request, ListParameters::Response { result });
        }
    }

    /// Sets all of the parameters or none, and announces them.
    fn set_together(&self, wanted: &[Parameter]) -> SetParametersResult {
        let set = wanted
            .iter()
            .map(|parameter| from_message(&parameter.value).map(|value| (parameter.name.as_str(), value)))
            .collect::<Result<Vec<_>, _>>()
            .and_then(|values| self.lock().set_all(values.iter().map(|(name, value)| (*name, value))));
        match set {
            Ok(()) => {
                let changed_parameters = wanted.iter().map(|wanted| parameter(&self.lock(), &wanted.name)).collect();
                self.announce(ParameterEvent { changed_parameters, ..ParameterEvent::default() });
                SetParametersResult { successful: true, reason: String::new() }
            }
            Err(reason) => SetParametersResult { successful: false, reason },
        }
    }

    fn announce(&self, event: ParameterEvent) {
        let now = self.clock.lock().unwrap_or_else(PoisonError::into_inner).get_now().unwrap_or_default();
        let event = ParameterEvent { stamp: Clock::to_builtin_time(&now), node: self.node.clone(), ..event };
        // Whoever listens has missed an event; the parameters are set all the same.
        let _ = self.events.publish(&event);
    }

    fn lock(&self) -> MutexGuard<'_, NodeParameters> {
        self.parameters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has come and was not yet taken; never waits.
pub(super) fn next<T>(stream: &mut BoxStream<'static, T>) -> Option<T> {
    stream.next().now_or_never().flatten()
}

fn answer<T>(request: ServiceRequest<T>, response: T::Response)
where
    T: r2r::WrappedServiceTypeSupport + 'static,
{
    // Whoever asked may be gone.
    let _ = request.respond(response);
}

fn value(parameters: &NodeParameters, name: &str) -> ValueMessage {
    parameters.value_of(name).map(to_message).unwrap_or_default()
}

fn parameter(parameters: &NodeParameters, name: &str) -> Parameter {
    Parameter { name: name.to_owned(), value: value(parameters, name) }
}

fn descriptor(parameters: &NodeParameters, name: &str) -> ParameterDescriptor {
    let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
        return ParameterDescriptor { name: name.to_owned(), ..ParameterDescriptor::default() };
    };
    let mut descriptor = ParameterDescriptor {
        name: name.to_owned(),
        type_: value(parameters, name).type_,
        description: entry.description.to_owned(),
        read_only: entry.read_only,
        ..ParameterDescriptor::default()
    };
    match entry.kind {
        Kind::Integer(from_value, to_value) => {
            descriptor.integer_range = vec![IntegerRange { from_value, to_value, step: 1 }];
        }
        Kind::Double(from_value, to_value) => {
            descriptor.floating_point_range = vec![FloatingPointRange { from_value, to_value, step: 0.0 }];
        }
        Kind::OneOf(choices) => descriptor.additional_constraints = alternatives(choices),
        Kind::Bool | Kind::Text | Kind::Texts | Kind::Integers => {}
    }
    descriptor
}

/// As rclcpp does it: names below the prefixes (or all), at most `depth` levels down (0: all of them).
fn list(prefixes: &[String], depth: u64) -> ListParametersResult {
    let levels = |name: &str| name.matches('.').count() as u64;
    let deep_enough = |levels: u64| depth == ListParameters::Request::DEPTH_RECURSIVE as u64 || levels < depth;
    let wanted = |name: &str| {
        if prefixes.is_empty() {
            return deep_enough(levels(name));
        }
        prefixes.iter().any(|prefix| match name.strip_prefix(prefix.as_str()) {
            Some("") => true,
            Some(rest) => rest.starts_with('.') && deep_enough(levels(rest)),
            None => false,
        })
    };
    let names: Vec<String> = TABLE.iter().map(|entry| entry.name).filter(|name| wanted(name)).map(Into::into).collect();
    let mut found: Vec<String> = Vec::new();
    for (prefix, _) in names.iter().filter_map(|name| name.rsplit_once('.')) {
        if !found.iter().any(|known| known == prefix) {
            found.push(prefix.to_owned());
        }
    }
    ListParametersResult { names, prefixes: found }
}

fn to_message(value: ParameterValue) -> ValueMessage {
    use ParameterValue as V;
    let of_type = |type_| ValueMessage { type_, ..ValueMessage::default() };
    match value {
        V::NotSet => of_type(NOT_SET),
        V::Bool(bool_value) => ValueMessage { bool_value, ..of_type(BOOL) },
        V::Integer(integer_value) => ValueMessage { integer_value, ..of_type(INTEGER) },
        V::Double(double_value) => ValueMessage { double_value, ..of_type(DOUBLE) },
        V::String(string_value) => ValueMessage { string_value, ..of_type(STRING) },
        V::ByteArray(byte_array_value) => ValueMessage { byte_array_value, ..of_type(BYTE_ARRAY) },
        V::BoolArray(bool_array_value) => ValueMessage { bool_array_value, ..of_type(BOOL_ARRAY) },
        V::IntegerArray(integer_array_value) => ValueMessage { integer_array_value, ..of_type(INTEGER_ARRAY) },
        V::DoubleArray(double_array_value) => ValueMessage { double_array_value, ..of_type(DOUBLE_ARRAY) },
        V::StringArray(string_array_value) => ValueMessage { string_array_value, ..of_type(STRING_ARRAY) },
    }
}

fn from_message(message: &ValueMessage) -> Result<ParameterValue, String> {
    use ParameterValue as V;
    let message = message.clone();
    Ok(match message.type_ {
        NOT_SET => V::NotSet,
        BOOL => V::Bool(message.bool_value),
        INTEGER => V::Integer(message.integer_value),
        DOUBLE => V::Double(message.double_value),
        STRING => V::String(message.string_value),
        BYTE_ARRAY => V::ByteArray(message.byte_array_value),
        BOOL_ARRAY => V::BoolArray(message.bool_array_value),
        INTEGER_ARRAY => V::IntegerArray(message.integer_array_value),
        DOUBLE_ARRAY => V::DoubleArray(message.double_array_value),
        STRING_ARRAY => V::StringArray(message.string_array_value),
        unknown => return Err(format!("a value of type {unknown} is none that ROS 2 defines")),
    })
}

// r2r gives every constant a type of its own.
const NOT_SET: u8 = ParameterType::PARAMETER_NOT_SET as u8;
const BOOL: u8 = ParameterType::PARAMETER_BOOL as u8;
const INTEGER: u8 = ParameterType::PARAMETER_INTEGER as u8;
const DOUBLE: u8 = ParameterType::PARAMETER_DOUBLE as u8;
const STRING: u8 = ParameterType::PARAMETER_STRING as u8;
const BYTE_ARRAY: u8 = ParameterType::PARAMETER_BYTE_ARRAY as u8;
const BOOL_ARRAY: u8 = ParameterType::PARAMETER_BOOL_ARRAY as u8;
const INTEGER_ARRAY: u8 = ParameterType::PARAMETER_INTEGER_ARRAY as u8;
const DOUBLE_ARRAY: u8 = ParameterType::PARAMETER_DOUBLE_ARRAY as u8;
const STRING_ARRAY: u8 = ParameterType::PARAMETER_STRING_ARRAY as u8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_type_come_back() {
        use ParameterValue as V;
        for value in [
            V::NotSet,
            V::Bool(true),
            V::Integer(-3),
            V::Double(0.5),
            V::String("text".into()),
            V::ByteArray(vec![1, 2]),
            V::BoolArray(vec![true, false]),
            V::IntegerArray(vec![1, -2]),
            V::DoubleArray(vec![0.5]),
            V::StringArray(vec!["a".into()]),
        ] {
            assert_eq!(from_message(&to_message(value.clone())), Ok(value));
        }
        assert!(from_message(&ValueMessage { type_: 77, ..ValueMessage::default() }).is_err());
    }

    #[test]
    fn lists_follow_prefix_and_depth() {
        assert_eq!(list(&[], 0).names.len(), TABLE.len());
        assert_eq!(list(&["nms_radius".into()], 1).names, ["nms_radius"]);
        assert!(list(&["nms".into()], 0).names.is_empty(), "a prefix ends at a dot");
    }
}
