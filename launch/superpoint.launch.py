"""Start the SuperPoint node on one camera.

    ros2 launch superpoint_p150 superpoint.launch.py image:=/camera/image_raw
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

# Arguments that override a parameter of the file when they are given.
PARAMETERS = {
    'backend': (str, 'auto, p150 or cpu'),
    'weights': (str, 'weights file (safetensors)'),
    'max_keypoints': (int, 'keypoints kept of a frame, -1 for all'),
    'keypoint_threshold': (float, 'keypoints must score above this, 0.0 to 1.0'),
    'nms_radius': (int, 'radius of non-maximum suppression in network pixels'),
    'return_descriptors': (bool, 'whether messages carry descriptors'),
    'descriptor_type': (str, 'float32 or float16'),
    'qos_reliability': (str, 'of the image subscription: best_effort or reliable'),
}


def node(context):
    """The node, with the file's parameters and those given as arguments."""
    overrides = {}
    for name, (kind, _) in PARAMETERS.items():
        if LaunchConfiguration(name).perform(context):
            overrides[name] = ParameterValue(LaunchConfiguration(name), value_type=kind)
    return [
        Node(
            package='superpoint_p150',
            executable='superpoint_node',
            name='superpoint',
            namespace=LaunchConfiguration('namespace'),
            parameters=[LaunchConfiguration('params_file')] + ([overrides] if overrides else []),
            remappings=[
                ('image', LaunchConfiguration('image')),
                ('keypoints', LaunchConfiguration('keypoints')),
            ],
            arguments=['--ros-args', '--log-level', LaunchConfiguration('log_level')],
            output='screen',
        )
    ]


def generate_launch_description():
    """What `ros2 launch` reads."""
    default_file = PathJoinSubstitution([FindPackageShare('superpoint_p150'), 'config', 'superpoint.yaml'])
    arguments = [
        DeclareLaunchArgument('params_file', default_value=default_file, description='parameters (YAML)'),
        DeclareLaunchArgument('namespace', default_value='', description='namespace of node and topics'),
        DeclareLaunchArgument('image', default_value='image', description='topic of the images'),
        DeclareLaunchArgument('keypoints', default_value='keypoints', description='topic of the keypoints'),
        DeclareLaunchArgument('log_level', default_value='info', description='debug, info, warn, error or fatal'),
    ]
    for name, (_, description) in PARAMETERS.items():
        arguments.append(
            DeclareLaunchArgument(name, default_value='', description=f"{description} [from the file]"))
    return LaunchDescription(arguments + [OpaqueFunction(function=node)])
