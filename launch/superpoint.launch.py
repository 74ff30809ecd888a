"""Start the SuperPoint node on one camera.

    ros2 launch superpoint_p150 superpoint.launch.py image:=/camera/image_raw
    ros2 launch superpoint_p150 superpoint.launch.py image:=/camera/image_raw rviz:=true max_keypoints:=400
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

# Arguments that override a parameter of the file when they are given.
PARAMETERS = {
    'backend': (str, 'auto, p150 or cpu'),
    'device_id': (int, 'number of the p150'),
    'fallback': (str, 'when the p150 fails in the middle of its work: none or cpu'),
    'weights': (str, 'weights file (safetensors)'),
    'threads': (int, 'CPU threads of the cpu backend, 0: one per core'),
    'max_keypoints': (int, 'keypoints kept of a frame, -1 for all'),
    'keypoint_threshold': (float, 'keypoints must score above this, 0.0 to 1.0'),
    'nms_radius': (int, 'radius of non-maximum suppression in network pixels'),
    'border_removal_distance': (int, 'keypoints closer to a border are dropped, in network pixels'),
    'postprocess': (str, 'package or upstream'),
    'return_descriptors': (bool, 'whether messages carry descriptors'),
    'descriptor_type': (str, 'float32 or float16'),
    'channel': (str, 'first or luma'),
    'mask': (str, 'image file; keypoints on its zero pixels are dropped'),
    'image_transport': (str, 'raw or compressed'),
    'qos_reliability': (str, 'of the image subscription: best_effort or reliable'),
    'qos_depth': (int, 'history depth of the image subscription'),
    'max_rate_hz': (float, 'frames a second at most, 0.0: no limit'),
    'lazy': (bool, 'pass frames over while nobody subscribes'),
    'overlay': (bool, 'draw ~/overlay while somebody subscribes'),
    'use_sim_time': (bool, 'ROS time from /clock'),
}


def nodes(context):
    """The node, with the file's parameters and those given as arguments; RViz if it is asked for."""
    overrides = {}
    for name, (kind, _) in PARAMETERS.items():
        if LaunchConfiguration(name).perform(context):
            overrides[name] = ParameterValue(LaunchConfiguration(name), value_type=kind)
    name, namespace = LaunchConfiguration('name'), LaunchConfiguration('namespace')
    remappings = [
        ('image', LaunchConfiguration('image')),
        ('keypoints', LaunchConfiguration('keypoints')),
    ]
    return [
        # First, because `launch` leaves running what it has started when a later package is not to be found.
        Node(
            package='rviz2',
            executable='rviz2',
            name=['rviz_', name],
            namespace=namespace,
            # The configuration's topics, image and overlay, lead where the node's do.
            remappings=[
                ('image', LaunchConfiguration('image')),
                ('overlay', [name, '/overlay']),
            ],
            arguments=['-d', LaunchConfiguration('rviz_config')],
            condition=IfCondition(LaunchConfiguration('rviz')),
            output='screen',
        ),
        Node(
            package='superpoint_p150',
            executable='superpoint_node',
            name=name,
            namespace=namespace,
            parameters=[LaunchConfiguration('params_file')] + ([overrides] if overrides else []),
            remappings=remappings,
            arguments=['--ros-args', '--log-level', LaunchConfiguration('log_level')],
            output='screen',
        ),
    ]


def generate_launch_description():
    """What `ros2 launch` reads."""
    share = FindPackageShare('superpoint_p150')
    arguments = [
        DeclareLaunchArgument('params_file', default_value=PathJoinSubstitution([share, 'config', 'superpoint.yaml']),
                              description='parameters (YAML)'),
        DeclareLaunchArgument('name', default_value='superpoint', description='name of the node'),
        DeclareLaunchArgument('namespace', default_value='', description='namespace of node and topics'),
        DeclareLaunchArgument('image', default_value='image', description='topic of the images'),
        DeclareLaunchArgument('keypoints', default_value='keypoints', description='topic of the keypoints'),
        DeclareLaunchArgument('log_level', default_value='info', description='debug, info, warn, error or fatal'),
        DeclareLaunchArgument('rviz', default_value='false', description='start RViz with images and overlay'),
        DeclareLaunchArgument('rviz_config', default_value=PathJoinSubstitution([share, 'config', 'superpoint.rviz']),
                              description='configuration of RViz'),
    ]
    for name, (_, description) in PARAMETERS.items():
        arguments.append(
            DeclareLaunchArgument(name, default_value='', description=f"{description} [from the file]"))
    return LaunchDescription(arguments + [OpaqueFunction(function=nodes)])
