"""Start one SuperPoint node for several cameras, which share the device in turn.

    ros2 launch superpoint_p150 multi_camera.launch.py cameras:=front,rear image:=image_raw

Each camera's images are read from CAMERA/image_raw, its keypoints go to CAMERA/keypoints. Every argument of
superpoint.launch.py that has no camera's topic in it can be set in the parameter file.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare


def node(context):
    """The node, with its cameras' topics remapped."""
    cameras = [name.strip() for name in LaunchConfiguration('cameras').perform(context).split(',') if name.strip()]
    if not cameras:
        raise RuntimeError('cameras must name at least one camera, such as cameras:=left,right')
    image = LaunchConfiguration('image').perform(context)
    keypoints = LaunchConfiguration('keypoints').perform(context)
    parameters = [LaunchConfiguration('params_file'), {'cameras': cameras}]
    mask = LaunchConfiguration('mask').perform(context)
    if mask:
        parameters.append({'mask': mask})
    transport = LaunchConfiguration('image_transport').perform(context)
    if transport:
        parameters.append({'image_transport': transport})
    remappings = []
    for name in cameras:
        remappings += [(f'{name}/image', f'{name}/{image}'), (f'{name}/keypoints', f'{name}/{keypoints}')]
    return [
        Node(
            package='superpoint_p150',
            executable='superpoint_node',
            name='superpoint',
            namespace=LaunchConfiguration('namespace'),
            parameters=parameters,
            remappings=remappings,
            arguments=['--ros-args', '--log-level', LaunchConfiguration('log_level')],
            output='screen',
        )
    ]


def generate_launch_description():
    """What `ros2 launch` reads."""
    default_file = PathJoinSubstitution([FindPackageShare('superpoint_p150'), 'config', 'superpoint.yaml'])
    return LaunchDescription([
        DeclareLaunchArgument('cameras', default_value='left,right', description='namespaces, separated by commas'),
        DeclareLaunchArgument('params_file', default_value=default_file, description='parameters (YAML)'),
        DeclareLaunchArgument('namespace', default_value='', description='namespace of the node and the cameras'),
        DeclareLaunchArgument('image', default_value='image', description='topic of the images, below each camera'),
        DeclareLaunchArgument('keypoints', default_value='keypoints',
                              description='topic of the keypoints, below each camera'),
        DeclareLaunchArgument('mask', default_value='',
                              description='mask file; {camera} in it stands for the name [from the file]'),
        DeclareLaunchArgument('image_transport', default_value='', description='raw or compressed [from the file]'),
        DeclareLaunchArgument('log_level', default_value='info', description='debug, info, warn, error or fatal'),
        OpaqueFunction(function=node),
    ])
