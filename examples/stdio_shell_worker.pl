#!/usr/bin/env perl
# A worker of the stdio contract for shell scripts. It needs Perl, and nothing else.
#
#   windlass conformance stdio --language sh -- perl examples/stdio_shell_worker.pl
#
# Inputs are environment variables, the output is the result, and an exit code other than 0 is a failure. Lines
# `CURRENT MAXIMUM MESSAGE` on descriptor 3 are updates. A cancel sends SIGTERM to the script and all its processes.
use strict; use warnings;
use IO::Select; use POSIX ();

open my $out, '>&', \*STDOUT or die $!;                    # for the protocol; scripts cannot write to it
open STDOUT,  '>&', \*STDERR or die $!;
$SIG{PIPE} = sub { kill 'KILL', map { -$_->{pid} } values %main::tasks; exit 1 };    # the client has closed the pipe

our %tasks;                                                # by id
my %by_fh;                                                 # handle -> [task, name of the stream]
my (@main, $main_runs);                                    # requests of the queue `main`, one at a time
my $select = IO::Select->new(\*STDIN);
my ($buffer, $open) = ('', 1);

while ($open || %tasks || @main) {
    for my $fh ($select->can_read) {
        if (fileno $fh == 0) { read_requests() } else { read_output($fh) }
    }
}

sub read_requests {
    if (!sysread STDIN, $buffer, 65536, length $buffer) { $open = 0; $select->remove(\*STDIN); $buffer .= "\n" }
    while ((my $end = index $buffer, "\n") >= 0) {
        my $line = substr $buffer, 0, $end + 1, '';
        next if $line =~ /^\s*$/;
        eval { handle($line); 1 } or print STDERR 'cannot carry out a request: ', substr($@, 0, 300);
    }
}

sub handle {
    my ($line) = @_;
    my $request = value(\$line);
    die "not an object\n" unless ref $request eq 'HASH';
    my ($id, $type) = @$request{qw(task requestType)};
    die "no task\n" unless defined $id && !ref $id && defined $type && !ref $type;
    if ($type eq 'CANCEL') {
        my $task = $tasks{$id} or die "no such task: $id\n";
        $task->{cancelled} = 1;
        kill 'TERM', -$task->{pid};
    } elsif ($type eq 'EXECUTE' && defined $request->{script}) {
        if (($request->{queue} // '') eq 'main') { push @main, $request; next_of_main() }
        else { start($request) }
    } else {
        respond($id, 'FAILURE', error => text("there is no request type $type, or it has no script"));
    }
}

sub next_of_main { $main_runs = start(shift @main) if !$main_runs && @main }

sub start {
    my ($request) = @_;
    my $task = $tasks{$request->{task}} = { id => $request->{task}, out => '', err => '', updates => '', open => 3 };
    my (@read, @write);
    for (0 .. 2) { pipe $read[$_], $write[$_] or die $! }
    respond($task->{id}, 'LAUNCH');
    my $pid = fork // die $!;
    if (!$pid) {
        setpgrp 0, 0;
        open STDIN, '<', '/dev/null';
        POSIX::dup2(fileno $write[$_], $_ + 1) for 0 .. 2;
        my $inputs = $request->{inputs} // {};
        $ENV{$_} = ref $inputs->{$_} || !defined $inputs->{$_} ? '' : $inputs->{$_}
            for grep { length($inputs->{$_} // '') < 100_000 } keys %$inputs;    # the limit of an environment variable
        $SIG{PIPE} = 'DEFAULT';
        exec 'sh', '-c', $request->{script} or POSIX::_exit(127);
    }
    setpgrp $pid, $pid;                                    # parent and child both set it, against a race
    $task->{pid} = $pid;
    close $_ for @write;
    @by_fh{ map { fileno $_ } @read } = ([$task, 'out'], [$task, 'err'], [$task, 'updates']);
    $select->add(@read);
    return $task;
}

sub read_output {
    my ($fh) = @_;
    my ($task, $what) = @{ $by_fh{fileno $fh} };
    my $got = sysread $fh, $task->{$what}, 65536, length $task->{$what};
    if ($what eq 'updates') {
        while ($task->{updates} =~ s/^(\d+) (\d+) ?(.*)\n//) {
            respond($task->{id}, 'UPDATE', message => text($3), current => $1, maximum => $2);
        }
    }
    return if $got;
    $select->remove($fh);
    close $fh;
    finish($task) if --$task->{open} == 0;
}

sub finish {
    my ($task) = @_;
    waitpid $task->{pid}, 0;
    my $status = $?;
    $task->{out} =~ s/\n\z//;
    print STDERR $task->{err};
    if    ($status == 0)      { respond($task->{id}, 'COMPLETION', outputs => '{"result":' . text($task->{out}) . '}') }
    elsif ($task->{cancelled}) { respond($task->{id}, 'CANCELATION') }
    else { respond($task->{id}, 'FAILURE', error => text("ended with status $status: $task->{err}")) }
    delete $tasks{$task->{id}};
    if ($main_runs && $main_runs == $task) { undef $main_runs; next_of_main() }
}

sub respond {
    my ($id, $type, @more) = @_;
    my $line = '{"task":' . text($id) . qq(,"responseType":"$type");
    while (my ($key, $json) = splice @more, 0, 2) { $line .= qq(,"$key":$json) }
    $line .= "}\n";
    while (length $line) { substr $line, 0, syswrite($out, $line) // exit(1), '' }
}

sub text {                                                 # a JSON string; bytes are taken for UTF-8
    return '"' . $_[0] =~ s/(["\\\x00-\x1f])/sprintf '\\u%04x', ord $1/ger . '"';
}

sub value {                                                # the JSON value at pos
    my ($s) = @_;
    $$s =~ /\G\s+/gc;
    return unescaped($1) if $$s =~ /\G"([^"\\]*+(?:\\.[^"\\]*+)*+)"/gc;
    return $1 if $$s =~ /\G(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)/gc;
    return $1 eq 'true' ? 'true' : $1 eq 'false' ? 'false' : undef if $$s =~ /\G(true|false|null)/gc;
    if ($$s =~ /\G([\[{])/gc) {
        my ($many, $end) = $1 eq '[' ? (0, ']') : (1, '}');
        my (@list, %map);
        until ($$s =~ /\G\s*\Q$end\E/gc) {
            my $key = value($s);
            if ($many) { $$s =~ /\G\s*:/gc or die "no colon\n"; $map{$key // ''} = value($s) }
            else { push @list, $key }
            $$s =~ /\G\s*,/gc or $$s =~ /\G(?=\s*\Q$end\E)/gc or die "no comma\n";
        }
        return $many ? \%map : \@list;
    }
    die "no JSON\n";
}

sub unescaped {
    my ($text) = @_;
    my %short = (n => "\n", t => "\t", r => "\r", b => "\b", f => "\f");
    $text =~ s/\\u([dD][89abAB]..)\\u([dD][c-fC-F]..)/utf8_of(0x10000 + ((hex($1) & 0x3ff) << 10 | hex($2) & 0x3ff))/ge;
    $text =~ s/\\(?:u(....)|(.))/defined $1 ? utf8_of(hex $1) : $short{$2} \/\/ $2/ge;
    return $text;
}

sub utf8_of { my $c = chr shift; utf8::encode($c); return $c }
