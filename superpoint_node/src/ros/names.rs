//! Topic names as remapping rules leave them. r2r applies the rules but tells nobody the result, and questions about
//! a topic (who publishes there?) need its full name.

use r2r::Node;

/// One rule of the command line, `from:=to`, for this node.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    from: String,
    to: String,
}

/// Resolves names as rcl does for this node.
#[derive(Debug)]
pub(super) struct Names {
    namespace: String,
    node: String,
    rules: Vec<Rule>,
}

impl Names {
    /// Reads the rules of this process's command line.
    pub(super) fn of(node: &Node) -> r2r::Result<Self> {
        Ok(Self::new(node.name()?, node.namespace()?, std::env::args().skip(1)))
    }

    fn new(node: String, namespace: String, arguments: impl Iterator<Item = String>) -> Self {
        let mut rules = Vec::new();
        let mut of_ros = false;
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--ros-args" => of_ros = true,
                "--" => of_ros = false,
                "-r" | "--remap" if of_ros => rules.extend(arguments.next().and_then(|rule| Rule::parse(&rule, &node))),
                _ => {}
            }
        }
        Self { namespace, node, rules }
    }

    /// The full name of a topic: that of the first rule that fits, else its own.
    pub(super) fn resolve(&self, topic: &str) -> String {
        self.remapped(topic).unwrap_or_else(|| self.expand(topic))
    }

    /// What a rule makes of a topic, if one fits.
    pub(super) fn remapped(&self, topic: &str) -> Option<String> {
        let full = self.expand(topic);
        let rule = self.rules.iter().find(|rule| self.expand(&rule.from) == full)?;
        Some(self.expand(&rule.to))
    }

    fn expand(&self, name: &str) -> String {
        let namespace = self.namespace.trim_end_matches('/');
        match name.strip_prefix('~') {
            Some(rest) => format!("{namespace}/{}{rest}", self.node),
            None if name.starts_with('/') => name.to_owned(),
            None => format!("{namespace}/{name}"),
        }
    }
}

impl Rule {
    fn parse(text: &str, node: &str) -> Option<Self> {
        let (from, to) = text.split_once(":=")?;
        let from = match from.split_once("://") {
            Some(("rostopic", topic)) => topic,
            Some(_) => return None, // a service's
            None => match from.split_once(':') {
                Some((for_node, topic)) if for_node == node => topic,
                Some(_) => return None, // another node's
                None => from,
            },
        };
        let of_the_node = from.starts_with("__"); // __node, __ns: applied before these names came here
        (!of_the_node).then(|| Self { from: from.into(), to: to.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(namespace: &str, arguments: &str) -> Names {
        Names::new("superpoint".into(), namespace.into(), arguments.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_rules_names_are_expanded() {
        for (namespace, topic, expected) in [
            ("/", "image", "/image"),
            ("/robot", "image", "/robot/image"),
            ("/robot", "/image", "/image"),
            ("/robot", "~/overlay", "/robot/superpoint/overlay"),
            ("/", "~/overlay", "/superpoint/overlay"),
        ] {
            assert_eq!(names(namespace, "image:=other").resolve(topic), expected);
        }
    }

    #[test]
    fn the_first_rule_that_fits_is_applied() {
        let names = names(
            "/robot",
            "-r before:=ros_args --ros-args -r __ns:=/robot -r image:=/cam/image_raw -r image:=/late -p x:=y \
             --remap superpoint:keypoints:=kp -r other:~/overlay:=/no -r rosservice://~/enable:=/no \
             -r rostopic:///robot/odd:=~/even -- -r keypoints:=/no",
        );
        for (topic, expected) in [
            ("image", "/cam/image_raw"),
            ("/robot/image", "/cam/image_raw"),
            ("keypoints", "/robot/kp"),
            ("~/overlay", "/robot/superpoint/overlay"),
            ("odd", "/robot/superpoint/even"),
            ("before", "/robot/before"),
        ] {
            assert_eq!(names.resolve(topic), expected, "{topic}");
        }
        assert_eq!(names.remapped("image/compressed"), None);
    }
}
