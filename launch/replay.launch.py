"""Play a recording into the SuperPoint node, on the recording's time.

    ros2 launch superpoint_p150 replay.launch.py bag:=drive.mcap image:=/camera/image_raw rate:=0.5

Takes the arguments of superpoint.launch.py too. Needs ros2bag with the recording's storage plugin. For every image to be
answered, play no faster than the node works (rate).
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, ExecuteProcess, IncludeLaunchDescription, OpaqueFunction
from launch.actions import RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare


def player(context):
    """`ros2 bag play`; when it ends, everything does."""
    loop = LaunchConfiguration('loop').perform(context).lower() in ('true', '1', 'yes')
    play = ExecuteProcess(
        cmd=['ros2', 'bag', 'play', LaunchConfiguration('bag'), '--clock', '--rate', LaunchConfiguration('rate'),
             # Both sides need a moment to find each other.
             '--delay', LaunchConfiguration('delay')] + (['--loop'] if loop else []),
        output='screen',
    )
    end = RegisterEventHandler(OnProcessExit(
        target_action=play, on_exit=[EmitEvent(event=Shutdown(reason='the recording is at its end'))]))
    return [end, play]


def generate_launch_description():
    """What `ros2 launch` reads."""
    node = PathJoinSubstitution([FindPackageShare('superpoint_p150'), 'launch', 'superpoint.launch.py'])
    return LaunchDescription([
        DeclareLaunchArgument('bag', description='the recording (required)'),
        DeclareLaunchArgument('rate', default_value='1.0', description='speed of playing'),
        DeclareLaunchArgument('delay', default_value='2.0', description='seconds before the first message'),
        DeclareLaunchArgument('loop', default_value='false', description='start over at the end'),
        IncludeLaunchDescription(PythonLaunchDescriptionSource(node), launch_arguments={'use_sim_time': 'true'}.items()),
        OpaqueFunction(function=player),
    ])
