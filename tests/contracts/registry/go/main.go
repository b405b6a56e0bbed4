// Calls methods of kagzi.WorkflowService with grpc-go and prints what a Go program sees.
//
// It knows no generated code: the messages come from the server, by reflection v1. Arguments are the address, the API
// key, and pairs of a method and its request as JSON. It prints one line of JSON for each pair.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const service = "kagzi.WorkflowService"

type seen struct {
	Method  string            `json:"method"`
	Code    string            `json:"code"`
	Message string            `json:"message"`
	Reply   json.RawMessage   `json:"reply,omitempty"`
	Details []json.RawMessage `json:"details"`
	Kinds   []string          `json:"kinds"`
}

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, key string, calls []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	described, err := describe(ctx, conn)
	if err != nil {
		return fmt.Errorf("reflection v1: %w", err)
	}
	for len(calls) > 0 {
		if err := call(ctx, conn, described, calls[0], calls[1]); err != nil {
			return err
		}
		calls = calls[2:]
	}
	return nil
}

// describe asks the server what its service looks like, and makes the type of its error details known to grpc-go.
func describe(ctx context.Context, conn *grpc.ClientConn) (protoreflect.ServiceDescriptor, error) {
	stream, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	asked := &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}
	if err := stream.Send(&reflection.ServerReflectionRequest{MessageRequest: asked}); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	set := &descriptorpb.FileDescriptorSet{}
	for _, raw := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(raw, file); err != nil {
			return nil, err
		}
		set.File = append(set.File, file)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, err
	}
	detail, err := files.FindDescriptorByName("kagzi.ErrorDetail")
	if err != nil {
		return nil, err
	}
	kind := dynamicpb.NewMessageType(detail.(protoreflect.MessageDescriptor))
	if err := protoregistry.GlobalTypes.RegisterMessage(kind); err != nil {
		return nil, err
	}
	found, err := files.FindDescriptorByName(service)
	if err != nil {
		return nil, err
	}
	return found.(protoreflect.ServiceDescriptor), nil
}

func call(ctx context.Context, conn *grpc.ClientConn, described protoreflect.ServiceDescriptor, name, body string) error {
	method := described.Methods().ByName(protoreflect.Name(name))
	if method == nil {
		return fmt.Errorf("the service has no method %s", name)
	}
	request, reply := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal([]byte(body), request); err != nil {
		return err
	}
	failed := conn.Invoke(ctx, "/"+service+"/"+name, request, reply)
	told := status.Convert(failed)
	out := seen{Method: name, Code: told.Code().String(), Message: told.Message()}
	for _, detail := range told.Details() {
		message, ok := detail.(proto.Message)
		if !ok {
			return fmt.Errorf("%s: a detail that cannot be read: %v", name, detail)
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
		if err != nil {
			return err
		}
		out.Details = append(out.Details, text)
		out.Kinds = append(out.Kinds, string(message.ProtoReflect().Descriptor().FullName()))
	}
	if failed == nil {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(reply)
		if err != nil {
			return err
		}
		out.Reply = text
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
